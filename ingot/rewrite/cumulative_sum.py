"""cumsum(x, dim) -> linear(x with dim last, lower triangle of ones)"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
MAX_WIDTH = 2048  # the weight has the square of it


def cumsum_as_linear(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype not in (None, x.dtype) or not x.is_floating_point() or not x.dim() or x.shape[dim] > MAX_WIDTH:
        raise Declined
    ones = torch.ones(x.shape[dim], x.shape[dim], dtype=x.dtype).tril()
    return aten.linear(x.movedim(dim, -1), ones).movedim(-1, dim)


RULE = Decomposition(
    "cumsum-as-matmul", {aten.cumsum.default: cumsum_as_linear}, "part of a sum: a sum of many terms needs float"
)
