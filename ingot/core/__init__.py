"""Shared by every room: FX graphs, records of artefacts, files, memory, progress."""
