"""The bench: the same models through the stock ExecuTorch flow and through Ingot (`python -m bench.run`)."""
