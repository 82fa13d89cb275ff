"""prod(x), prod(x, dim) -> products of halves of x; logsumexp(x, dims) -> m + log(sum(exp(x - m))) with m = amax(x)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.extrema import amax_by_pooling
from ingot.rewrite.float_only import LARGEST, on_floats

aten = torch.ops.aten
_MOST_FACTORS = 4096


def product(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    if not x.dim() or not 0 < x.shape[dim] <= _MOST_FACTORS:
        raise Declined
    while (many := x.shape[dim]) > 1:
        half = many // 2
        both = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = both if many % 2 == 0 else torch.cat([both, x.narrow(dim, many - 1, 1)], dim)
    return x if keepdim else x.squeeze(dim)


def product_of_all(x: Tensor) -> Tensor:
    return product(x.reshape(-1), 0)


def log_sum_exp(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """The maximum is kept finite: infinity minus itself is NaN."""
    if not x.dim() or not dims:
        raise Declined
    most = aten.clamp(amax_by_pooling(x, dims, True), -LARGEST, LARGEST)
    total = aten.log(aten.sum.dim_IntList(aten.exp(x - most), list(dims), True)) + most
    return total if keepdim else total.squeeze(tuple(dims))


_PRODUCTS = {aten.prod.dim_int: on_floats(product), aten.prod.default: on_floats(product_of_all)}
PRODUCTS = Decomposition("products-by-halves", _PRODUCTS)
RULE = Decomposition(
    "products-by-halves",
    {**_PRODUCTS, aten.logsumexp.default: on_floats(log_sum_exp)},
    "part of a product or of a logarithm of a sum: it needs float",
)
