"""Tensors that fit several memory formats are contiguous.

(2, 8, 1, 1) and (2, 1, 3, 4) have the same memory in both formats, and the strides of either. ExecuTorch sorts the
strides: it calls such a tensor channels-last, or (0, 2, 1, 3). Backends decide by the memory, and host kernels refuse
operands of different dim orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ingot.patches.version_gate import patched


@contextmanager
def plain_dim_orders() -> Iterator[None]:
    with patched("dim_orders"):
        yield


def contiguous_where_possible(original: Any, _session: Any) -> Callable[..., Any]:
    def from_tensor(tensor: torch.Tensor, const: bool = False) -> Any:
        spec = original(tensor, const)
        static = all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride()))
        if static and tensor.is_contiguous():
            spec.dim_order = tuple(range(tensor.dim()))
        return spec

    return from_tensor
