"""Weight-only and dynamic-activation schemes: integer weights by groups (4w, 8w, 8da4w, 8da8w)."""
