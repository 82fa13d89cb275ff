"""Shared by all packages: FX helpers, artefact records, atomic files, host memory, progress."""
