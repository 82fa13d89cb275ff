"""One float run over the calibration data: statistics per value, sensitivity per quantization point."""
