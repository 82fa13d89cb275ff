"""sort(x, dim) -> each element at its rank: how many are smaller, or equal and before it

Exact where elements are equal, which topk is not: a stable sort, and a sort whose ties a caller sees. A NaN counts as
the largest value, as in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
MOST_RANKED = 1024  # elements along the dimension: all pairs are compared


def sort_by_ranks(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if not x.dim() or x.shape[dim] > MOST_RANKED or x.dtype == torch.bool:
        raise Declined
    last = x.movedim(dim, -1)
    ranks = _ranks(last, descending)
    places = torch.arange(last.shape[-1]).expand(last.shape)
    # Ranks are a permutation, so every zero is overwritten.
    values = torch.zeros(last.shape, dtype=x.dtype).scatter(-1, ranks, last)
    indices = torch.zeros(last.shape, dtype=torch.int64).scatter(-1, ranks, places)
    return values.movedim(-1, dim), indices.movedim(-1, dim)


def _ranks(x: Tensor, descending: bool) -> Tensor:
    size = x.shape[-1]
    mine, other = x.unsqueeze(-1), x.unsqueeze(-2)
    first = torch.gt(other, mine) if descending else torch.lt(other, mine)
    equal = torch.eq(other, mine)
    if x.dtype.is_floating_point:
        nan, other_nan = torch.ne(mine, mine), torch.ne(other, other)
        largest = other_nan & ~nan if descending else nan & ~other_nan
        first, equal = first | largest, equal | (nan & other_nan)
    before = torch.ones(size, size, dtype=torch.bool).tril(-1)
    return (first | (equal & before)).to(torch.int64).sum(-1)


def stable_sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return sort_by_ranks(x, dim, descending)


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return sort_by_ranks(x, dim, descending)[1]


def stable_argsort(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return argsort(x, dim, descending)


RULE = Decomposition(
    "stable-sort-by-ranks",
    {
        aten.sort.default: sort_by_ranks,
        aten.sort.stable: stable_sort,
        aten.argsort.default: argsort,
        aten.argsort.stable: stable_argsort,
    },
)
