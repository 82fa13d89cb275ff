"""A language model with real weights: Ingot against the stock export, eager torch and llama.cpp."""
