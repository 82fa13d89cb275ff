"""Decoder language models: load a checkpoint, cast it, generate text with the result."""
