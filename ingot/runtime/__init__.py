"""ExecuTorch's runtime: bindings, a worker process, programs run segment by segment."""
