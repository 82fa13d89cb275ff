"""embedding_bag(w, indices, offsets) -> mask @ embedding(w, indices), for sums and means; amax of masked rows for max

mask[b, p] is 1 where position p lies in bag b, offsets[b] <= p < offsets[b + 1], and is no padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten
SUM, MEAN, MAX = range(3)  # torch's modes


def bags_of_rows(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = SUM,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, None, None, None]:  # fmt: skip
    rows = aten.embedding(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    inside = _members(indices, offsets, include_last_offset)
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    mask = inside.to(weight.dtype)
    return (_largest(rows, inside) if mode == MAX else _total(rows, mask, mode)), None, None, None


def _padded_bags(weight: Tensor, *args: Any) -> tuple[Tensor, None, None, None]:
    """Here a negative padding index counts from the end, and None means none."""
    padding_idx = -1 if args[-1] is None else args[-1] % weight.shape[0]
    bags: Any = bags_of_rows
    return bags(weight, *args[:-1], padding_idx=padding_idx)


def _members(indices: Tensor, offsets: Tensor, include_last_offset: bool) -> Tensor:
    """bags x positions. The last bag ends with the indices, unless its end is given."""
    position = torch.arange(indices.shape[0], dtype=offsets.dtype)
    started = position >= offsets.unsqueeze(1)
    begins, ends = started, torch.cat([started[1:], torch.zeros_like(started[:1])])
    inside = begins & ends.logical_not()
    return inside[:-1] if include_last_offset else inside


def _total(rows: Tensor, mask: Tensor, mode: int) -> Tensor:
    total = aten.mm(mask, rows)
    return total if mode == SUM else total / torch.clamp(mask.sum(1, keepdim=True), min=1.0)


def _largest(rows: Tensor, inside: Tensor) -> Tensor:
    """An empty bag has zeros."""
    chosen = torch.where(inside.unsqueeze(2), rows.unsqueeze(0), torch.full([], -torch.inf, dtype=rows.dtype))
    filled = inside.any(1, keepdim=True)
    return torch.where(filled, chosen.amax(1), torch.zeros([], dtype=rows.dtype))


RULE = Decomposition(
    "embedding-bag-as-matmul",
    {
        aten.embedding_bag.default: bags_of_rows,
        aten.embedding_bag.padding_idx: _padded_bags,
        aten._embedding_bag.default: bags_of_rows,
        aten._embedding_bag_forward_only.default: bags_of_rows,
    },
)
