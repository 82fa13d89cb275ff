"""GPUs through ExecuTorch's Vulkan shaders."""
