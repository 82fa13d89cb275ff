"""cumprod(x, dim), cummax(x, dim), cummin(x, dim) -> log2(n) products or maxima of x and x shifted by 1, 2, 4 …

After the step of width w each element covers the 2 w elements up to it. Values only: what reads indices is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten


def scan(x: Tensor, dim: int, *, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The first elements of a step have their final value: they are kept, not combined with a neutral element."""
    size, width = x.shape[dim] if x.dim() else 1, 1
    while width < size:
        later = combine(x.narrow(dim, width, size - width), x.narrow(dim, 0, size - width))
        x, width = aten.cat([x.narrow(dim, 0, width), later], dim), 2 * width
    return x


def cumulative_product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype not in (None, x.dtype):
        raise Declined
    return scan(x, dim, combine=aten.mul)


def extremum(x: Tensor, dim: int, *, combine: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, None]:
    return scan(x, dim, combine=combine), None


RULE = Decomposition(
    "scan-by-doubling",
    {
        aten.cumprod.default: cumulative_product,
        aten.cummax.default: partial(extremum, combine=aten.maximum),
        aten.cummin.default: partial(extremum, combine=aten.minimum),
    },
)
