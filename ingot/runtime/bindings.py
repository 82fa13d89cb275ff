"""ExecuTorch's runtime without its exporter, which `executorch.runtime` imports: five seconds and 130 MB."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def runtime_bindings() -> Any:
    import executorch.kernels.quantized  # noqa: F401  registers the quantized kernels with it

    try:
        from executorch.extension.pybindings import _C as found
    except ImportError:
        from executorch.extension.pybindings import portable_lib as found
    return found


def load_method(path: Path, method: str) -> tuple[Any, Any]:
    """A program and a method to call: its methods share the memory of their buffers, and it must outlive them."""
    program = runtime_bindings()._load_program(str(path))
    return program, program.load_method(method)
