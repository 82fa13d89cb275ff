"""adaptive_avg_pool(x, size) -> avg_pool along the dimensions that size divides, linear along the others
adaptive_max_pool(x, size) -> max_pool along those dimensions, cat of max_pools of slices along the others

Window i of n elements in o windows is [floor(i * n / o), ceil((i + 1) * n / o)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition
from ingot.rewrite.pool3d import avg_pool3d_as_2d, max_pool3d_as_2d

aten = torch.ops.aten


def adaptive_avg(x: Tensor, size: Sequence[int]) -> Tensor:
    x = _pool_where_divisible(avg_pool3d_as_2d, x, size)
    for dim, out in enumerate(size, x.dim() - len(size)):
        x = x if x.shape[dim] == out else _mean_of_windows(x, dim, out)
    return x


def adaptive_max(x: Tensor, size: Sequence[int]) -> tuple[Tensor, None]:
    x = _pool_where_divisible(max_pool3d_as_2d, x, size)
    for dim, out in enumerate(size, x.dim() - len(size)):
        x = x if x.shape[dim] == out else _max_of_windows(x, dim, out)
    return x, None


def _pool_where_divisible(pool: Callable[..., Tensor], x: Tensor, size: Sequence[int]) -> Tensor:
    """As a pool of three dimensions, some of them one wide."""
    space = x.shape[x.dim() - len(size) :]
    kernel = [n // out if n % out == 0 else 1 for n, out in zip(space, size, strict=True)]
    lead, ones = x.shape[: x.dim() - len(size)], [1] * (3 - len(size))
    y = pool(x.reshape(-1, *ones, *space), ones + kernel)
    return y.reshape(*lead, *y.shape[1 + len(ones) :])


def _mean_of_windows(x: Tensor, dim: int, out: int) -> Tensor:
    """A product with a constant matrix: row i has 1 / width within window i."""
    size = x.shape[dim]
    i, position = torch.arange(out).reshape(-1, 1), torch.arange(size)
    start, end = i * size // out, ((i + 1) * size + out - 1) // out
    inside = ((position >= start) & (position < end)).to(x.dtype)
    order = [*(d for d in range(x.dim()) if d != dim), dim]
    y = aten.linear(x.permute(order), inside / (end - start).to(x.dtype))
    return y.permute([order.index(d) for d in range(x.dim())])


def _max_of_windows(x: Tensor, dim: int, out: int) -> Tensor:
    size, inner = x.shape[dim], x.shape[dim + 1 :].numel()
    flat = x.reshape(1, -1, size, inner)
    spans = [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
    found = [aten.max_pool2d(flat.narrow(2, a, b - a), [b - a, 1], [1, 1]) for a, b in spans]
    return aten.cat(found, 2).reshape(*x.shape[:dim], out, *x.shape[dim + 1 :])


RULE = Decomposition(
    "adaptive-pool-as-pool",
    {
        aten.adaptive_avg_pool1d.default: adaptive_avg,
        aten.adaptive_avg_pool2d.default: adaptive_avg,
        aten._adaptive_avg_pool2d.default: adaptive_avg,
        aten.adaptive_avg_pool3d.default: adaptive_avg,
        aten.adaptive_max_pool1d.default: adaptive_max,
        aten.adaptive_max_pool2d.default: adaptive_max,
        aten.adaptive_max_pool3d.default: adaptive_max,
    },
)
