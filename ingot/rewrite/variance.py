"""var(x, dims) -> mean((x - mean(x)) ^ 2) * n / (n - correction); std is its root, var_mean also gives the mean"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
Dims = Sequence[int] | None


def variance_and_mean(
    x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if not x.is_floating_point() or not x.dim():
        raise Declined
    every = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in every)
    left = count - (1 if correction is None else correction)
    if left <= 0:
        raise Declined
    mean = aten.mean(x, every, True)
    centred = x - mean
    variance = aten.mean(centred * centred, every, True) * (count / left)
    shape = [n for d, n in enumerate(x.shape) if d not in every]
    return (variance, mean) if keepdim else (variance.reshape(shape), mean.reshape(shape))


def variance(x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return variance_and_mean(x, dims, correction=correction, keepdim=keepdim)[0]


def deviation(x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return aten.sqrt(variance(x, dims, correction=correction, keepdim=keepdim))


def _unbiased_variance(x: Tensor, dims: Dims = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return variance(x, dims, correction=float(unbiased), keepdim=keepdim)


def _unbiased_deviation(x: Tensor, dims: Dims = None, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return deviation(x, dims, correction=float(unbiased), keepdim=keepdim)


RULE = Decomposition(
    "variance-as-means",
    {
        aten.var.correction: variance,
        aten.var.dim: _unbiased_variance,
        aten.std.correction: deviation,
        aten.std.dim: _unbiased_deviation,
        aten.var_mean.correction: variance_and_mean,
    },
    "part of a variance: its statistics need float",
)
