"""diagonal(x) -> index_select of the two dimensions as one"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten


def diagonal_as_selection(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    size = x.diagonal(offset, dim1, dim2).shape[-1]
    if not size or not x.is_floating_point():
        raise Declined
    moved = x.movedim((dim1, dim2), (-2, -1))
    width = moved.shape[-1]
    first = offset if offset >= 0 else -offset * width
    places = torch.arange(size) * (width + 1) + first
    return aten.index_select(moved.reshape(*moved.shape[:-2], -1), -1, places)


RULE = Decomposition("diagonal-as-selection", {aten.diagonal.default: diagonal_as_selection})
