"""What torchao's convert does only for quantization-aware training of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule


def same_module(original: Callable[[GraphModule], GraphModule], session: dict[str, Any]) -> Any:
    """Ingot folds batch norms when it captures, and trains with fake quantizers of its own."""
    return lambda module: module
