"""ExecuTorch's runtime: its bindings, a worker process, and programs run segment by segment."""
