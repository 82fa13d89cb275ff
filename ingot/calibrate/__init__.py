"""One float run over the data: statistics per value and sensitivity per quantization point."""
