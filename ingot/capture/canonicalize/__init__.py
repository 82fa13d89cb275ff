"""Canonicalization: positional arguments, folded constants, no identities, canonical data movement."""
