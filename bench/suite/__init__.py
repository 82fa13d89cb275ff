"""ExecuTorch's own operator and model suites through Ingot, and through the stock flow."""
