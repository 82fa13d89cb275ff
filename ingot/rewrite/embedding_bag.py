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
    inside = _members(indices, offsets[:-1] if include_last_offset else offsets)
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    if mode == MAX:
        return _largest(rows, inside), None, None, None
    summed = _until(offsets[-1:], inside) if include_last_offset and padding_idx < 0 else inside
    total = aten.mm(summed.to(weight.dtype), rows)
    return (total if mode == SUM else total / _sizes(inside, weight.dtype)), None, None, None


def _padded_bags(weight: Tensor, *args: Any) -> tuple[Tensor, None, None, None]:
    """Here a negative padding index counts from the end, and None means none."""
    padding_idx = -1 if args[-1] is None else args[-1] % weight.shape[0]
    bags: Any = bags_of_rows
    return bags(weight, *args[:-1], padding_idx=padding_idx)


def _members(indices: Tensor, starts: Tensor) -> Tensor:
    """bags x positions. The last bag ends with the indices."""
    started = _positions(indices.shape[0], starts) >= starts.unsqueeze(1)
    return started & torch.cat([started[1:], torch.zeros_like(started[:1])]).logical_not()


def _until(end: Tensor, inside: Tensor) -> Tensor:
    """torch's kernels read a last offset below the number of indices in sums without padding only, and divide a mean
    by the size up to the last index all the same."""
    return inside & (_positions(inside.shape[1], end) < end)


def _positions(many: int, like: Tensor) -> Tensor:
    return torch.arange(many, dtype=like.dtype)


def _sizes(inside: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.clamp(inside.to(dtype).sum(1, keepdim=True), min=1.0)


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
