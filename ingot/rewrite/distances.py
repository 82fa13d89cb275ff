"""dist(x, y, p) -> linalg_vector_norm(x - y, p); pairwise_distance(x, y, p) -> linalg_vector_norm(x - y + eps, p, -1)
cosine_similarity(x, y) -> sum(x * y) / (max(norm(x), eps) * max(norm(y), eps))
cdist(x, y, p) -> linalg_vector_norm(x[:, None] - y, p, -1); for many rows by products, as torch computes it
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.float_only import on_floats

aten = torch.ops.aten
_MANY_ROWS = 25  # from here on torch's default is |x|^2 + |y|^2 - 2 x y
_BY_PRODUCTS, _BY_DIFFERENCES = 1, 2  # compute_mode; None: by the number of rows
MOST_DIFFERENCES = 1 << 22  # elements of all differences of a cdist


def distance(x: Tensor, y: Tensor, order: float = 2.0) -> Tensor:
    return aten.linalg_vector_norm(x - y, order)


def pairwise_distance(x: Tensor, y: Tensor, order: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return aten.linalg_vector_norm(x - y + eps, order, [-1], keepdim)


def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    if x.dim() != y.dim():
        raise Declined
    norms = [torch.clamp(aten.linalg_vector_norm(t, 2, [dim], True), min=eps) for t in (x, y)]
    return ((x * y).sum(dim, keepdim=True) / (norms[0] * norms[1])).squeeze(dim)


def all_distances(x: Tensor, y: Tensor, order: float = 2.0, mode: int | None = None) -> Tensor:
    many = max(x.shape[-2], y.shape[-2]) > _MANY_ROWS
    if order == 2.0 and mode != _BY_DIFFERENCES and (many or mode == _BY_PRODUCTS):
        return _by_products(x, y)
    if x.shape[:-1].numel() * y.shape[-2] * x.shape[-1] > MOST_DIFFERENCES:
        raise Declined
    return aten.linalg_vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), order, [-1])


def _by_products(x: Tensor, y: Tensor) -> Tensor:
    squares = aten.sum.dim_IntList(x * x, [-1], True) + aten.sum.dim_IntList(y * y, [-1], True).transpose(-2, -1)
    return aten.sqrt(aten.clamp(squares - aten.matmul(x, y.transpose(-2, -1)) * 2.0, min=0.0))


RULE = Decomposition(
    "distances-as-norms",
    {
        aten.dist.default: on_floats(distance),
        aten.pairwise_distance.default: on_floats(pairwise_distance),
        aten.cosine_similarity.default: on_floats(cosine_similarity),
        aten._cdist_forward.default: on_floats(all_distances),
        aten.cdist.default: on_floats(all_distances),
    },
    "part of a distance: a sum of squares needs float",
)
