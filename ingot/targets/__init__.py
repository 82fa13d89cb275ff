"""Backends that Ingot casts for: one package each."""
