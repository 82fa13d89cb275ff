"""median(x, dim), kthvalue(x, k, dim), sort(x, dim), argsort(x, dim) -> topk

The runtime has topk and none of these. Which of several equal values an index names is open in torch too. A NaN counts
as the largest value here; median and kthvalue return it in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]


def median_of_all(x: Tensor) -> Tensor:
    return smallest(x.reshape(-1), (x.numel() + 1) // 2)[0]


def median_along(x: Tensor, dim: int, keepdim: bool = False) -> Pair:
    size = x.shape[dim] if x.dim() else 1
    return smallest(x, (size + 1) // 2, dim, keepdim)


def smallest(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """The k-th smallest value, with its position."""
    if not x.dim():
        value, index = smallest(x.reshape(1), k)
        return value, index
    values, indices = aten.topk(x, k, dim, False, True)
    found = [v.narrow(dim, k - 1, 1) for v in (values, indices)]
    value, index = found if keepdim else [f.squeeze(dim) for f in found]
    return value, index


def sort_as_topk(x: Tensor, dim: int = -1, descending: bool = False) -> Pair:
    values, indices = aten.topk(x, x.shape[dim], dim, descending, True)
    return values, indices


def stable_sort_as_topk(
    x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor | None]:
    """A stable sort keeps the order of equal values; topk does not promise that."""
    values, indices = sort_as_topk(x, dim, descending)
    return values, None if stable else indices


def argsort_as_topk(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return sort_as_topk(x, dim, descending)[1]


RULE = Decomposition(
    "order-statistics-as-topk",
    {
        aten.median.default: median_of_all,
        aten.median.dim: median_along,
        aten.kthvalue.default: smallest,
        aten.sort.default: sort_as_topk,
        aten.sort.stable: stable_sort_as_topk,
        aten.argsort.default: argsort_as_topk,
    },
)
