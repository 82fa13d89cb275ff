"""max(x) -> amax(x, dims); logsumexp(x, dims) -> m + log(sum(exp(x - m))) with m = amax(x, dims)
lerp(x, y, w) -> x + (y - x) * w
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.float_only import on_floats

aten = torch.ops.aten


def max_of_all(x: Tensor) -> Tensor:
    if not x.dim():
        raise Declined
    return aten.amax(x.reshape(-1), [0])


def min_of_all(x: Tensor) -> Tensor:
    if not x.dim():
        raise Declined
    return aten.amin(x.reshape(-1), [0])


def log_sum_exp_by_amax(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """An infinite maximum has no place in integers: it is not treated apart."""
    if not x.dim() or not dims:
        raise Declined
    most = aten.amax(x, list(dims), True)
    total = aten.log(aten.sum.dim_IntList(aten.exp(x - most), list(dims), True)) + most
    return total if keepdim else total.squeeze(tuple(dims))


def interpolated(x: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
    return x + (y - x) * weight


RULE = Decomposition(
    "reductions-by-parts",
    {
        aten.max.default: on_floats(max_of_all),
        aten.min.default: on_floats(min_of_all),
        aten.logsumexp.default: on_floats(log_sum_exp_by_amax),
        aten.lerp.Scalar: on_floats(interpolated),
        aten.lerp.Tensor: on_floats(interpolated),
    },
)
