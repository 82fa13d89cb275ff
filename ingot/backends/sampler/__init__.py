"""An ExecuTorch backend for grid_sample: numpy on the host, a compute shader on Vulkan."""
