"""Checks of the source that `make check` runs."""
