"""Solves for the quantization of every value: constraints of ops, measured ranges, cost and noise."""
