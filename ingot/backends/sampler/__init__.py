"""Our own ExecuTorch backend for grid_sample: run by numpy on the host or by a shader on Vulkan."""
