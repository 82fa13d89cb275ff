"""Decoders that generate text: from a checkpoint to a program, and running it."""
