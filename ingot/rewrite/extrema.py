"""amax(x, dims), max(x, dim).values -> max_pool2d over x as [1, others, dims, 1]; amin(x) -> -amax(-x)"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
Dims = Sequence[int]


def amax_by_pooling(x: Tensor, dims: Dims = (), keepdim: bool = False) -> Tensor:
    if not x.is_floating_point() or not x.dim():
        raise Declined
    gone = sorted(d % x.dim() for d in dims) or list(range(x.dim()))
    kept = [d for d in range(x.dim()) if d not in gone]
    width = math.prod(x.shape[d] for d in gone)
    y = x.permute([*kept, *gone]).reshape(1, -1, width, 1)
    y = y if width == 1 else aten.max_pool2d(y, [width, 1])
    return y.reshape([1 if d in gone else s for d, s in enumerate(x.shape) if keepdim or d in kept])


def amin_by_pooling(x: Tensor, dims: Dims = (), keepdim: bool = False) -> Tensor:
    return -amax_by_pooling(-x, dims, keepdim)


def max_values(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, None]:
    return amax_by_pooling(x, [dim], keepdim), None


def min_values(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, None]:
    return amin_by_pooling(x, [dim], keepdim), None


RULE = Decomposition(
    "extremum-as-max-pool",
    {
        aten.amax.default: amax_by_pooling,
        aten.amin.default: amin_by_pooling,
        aten.max.default: amax_by_pooling,
        aten.min.default: amin_by_pooling,
        aten.max.dim: max_values,
        aten.min.dim: min_values,
    },
)
