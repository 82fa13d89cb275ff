"""cdist(x, y) -> the norms of all differences x - y; for many rows by products, as torch computes it

pairwise_distance and cosine_similarity are composites: composite_parts.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
_MANY_ROWS = 25  # from here on torch's default is |x|^2 + |y|^2 - 2 x y
_BY_PRODUCTS, _NEVER_BY_PRODUCTS = 1, 2  # compute_mode; None: by the number of rows


def distances(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    if p == 2.0 and compute_mode != _NEVER_BY_PRODUCTS:
        many = max(x.shape[-2], y.shape[-2]) > _MANY_ROWS
        if many or compute_mode == _BY_PRODUCTS:
            return _by_products(x, y)
    return _norm(aten.sub.Tensor(x.unsqueeze(-2), y.unsqueeze(-3)), p)


def _norm(difference: Tensor, p: float) -> Tensor:
    if p == 2.0:
        return aten.sqrt(aten.sum.dim_IntList(difference * difference, [-1]))
    if p == 1.0:
        return aten.sum.dim_IntList(aten.abs(difference), [-1])
    if p == math.inf:
        return aten.amax(aten.abs(difference), [-1])
    raise Declined


def _by_products(x: Tensor, y: Tensor) -> Tensor:
    squares = aten.sum.dim_IntList(x * x, [-1], True) + aten.sum.dim_IntList(y * y, [-1], True).transpose(-2, -1)
    return aten.sqrt(aten.clamp(squares - aten.matmul(x, y.transpose(-2, -1)) * 2.0, min=0.0))


RULE = Decomposition("distances-as-norms", {aten.cdist.default: distances, aten._cdist_forward.default: distances})
