"""amax(x, dims), max(x, dim).values -> max_pool2d over x as [1, others, dims, 1]; amin(x) -> -amax(-x)
max(x, dim).indices, topk(x, 1).indices -> argmax(x, dim), so that an index on the host does not split the values
max_pool2d with steps over elements -> every s-th of max_pool2d; max_pool2d_with_indices, indices unread -> max_pool2d
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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


def max_of_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amax_by_pooling(x, [dim], keepdim), aten.argmax(x, dim, keepdim)


def min_of_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amin_by_pooling(x, [dim], keepdim), aten.argmin(x, dim, keepdim)


def topk_of_one(x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> tuple[Tensor, Tensor]:
    if k != 1:
        raise Declined
    return (max_of_dim if largest else min_of_dim)(x, dim, True)


def max_pool(
    x: Tensor, kernel: Dims, stride: Dims = (), padding: Dims = (0,), dilation: Dims = (1,), ceil_mode: bool = False
) -> Tensor:
    """XNNPACK steps by a window at most: larger steps are taken afterwards. It has no pool of one element."""
    sizes, steps = ([*each] * 2 if len(each) == 1 else [*each] for each in (kernel, stride or kernel))
    if ceil_mode or all(k >= s for k, s in zip(sizes, steps, strict=True)):
        return aten.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
    y = aten.max_pool2d(x, sizes, [1, 1], padding, dilation) if set(sizes) != {1} else x
    return y[..., :: steps[0], :: steps[1]]


def max_pool_values(x: Tensor, *windows: Any) -> tuple[Tensor, None]:
    return max_pool(x, *windows), None


def pool_without_indices(x: Tensor, *windows: Any) -> tuple[Tensor, None]:
    return aten.max_pool2d(x, *windows), None


def amax_without_indices(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, None]:
    return aten.amax(x, [dim], keepdim), None


def amin_without_indices(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, None]:
    return aten.amin(x, [dim], keepdim), None


# Where the backend has these ops, and not those that give places too.
UNREAD_INDICES = Decomposition(
    "extremum-without-indices",
    {
        aten.max_pool2d_with_indices.default: pool_without_indices,
        aten.max.dim: amax_without_indices,
        aten.min.dim: amin_without_indices,
    },
)
RULE = Decomposition(
    "extremum-as-max-pool",
    {
        aten.amax.default: amax_by_pooling,
        aten.amin.default: amin_by_pooling,
        aten.max.default: amax_by_pooling,
        aten.min.default: amin_by_pooling,
        aten.max_pool2d.default: max_pool,
        aten.max_pool2d_with_indices.default: max_pool_values,
        aten.max.dim: max_of_dim,
        aten.min.dim: min_of_dim,
        aten.topk.default: topk_of_one,
    },
)
