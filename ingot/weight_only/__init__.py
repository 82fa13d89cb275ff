"""Weight-only (4w, 8w) and dynamic-activation (8da4w, 8da8w) schemes: integer weights with per-group scales."""
