"""Targets: one package for each backend."""
