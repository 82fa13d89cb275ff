"""ExecuTorch's pybindings without `executorch.runtime`, which imports the exporter: five seconds and 130 MB."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def runtime_bindings() -> Any:
    import executorch.kernels.quantized  # noqa: F401  registers the quantized kernels

    try:
        from executorch.extension.pybindings import _C as found
    except ImportError:
        from executorch.extension.pybindings import portable_lib as found
    return found


def load_method(path: Path, method: str) -> tuple[Any, Any]:
    """A program and one of its methods. The program owns the buffers of its methods and must outlive them."""
    program = runtime_bindings()._load_program(str(path))
    return program, program.load_method(method)
