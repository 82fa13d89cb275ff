"""max_pool(x, return_indices=True), adaptive_max_pool(x, return_indices=True) -> max(windows of x), gather(positions)

The elements of every window are copied side by side; max over them returns a place in the window, and a constant table
has the place in x for it. Windows at a border repeat an element, which changes neither the maximum nor its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def adaptive_max_with_indices(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    space = x.shape[x.dim() - len(size) :]
    return _max_of_windows(x, [_adaptive_positions(n, out) for n, out in zip(space, size, strict=True)])


def max_pool_with_indices(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False, *, rank: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    full = [list(a) * rank if len(a) == 1 else list(a) for a in (kernel, stride or kernel, padding, dilation)]
    space = x.shape[x.dim() - rank :]
    each = zip(space, *full, strict=True)
    return _max_of_windows(x, [_pool_positions(n, k, s, p, d, ceil_mode) for n, k, s, p, d in each])


def _adaptive_positions(size: int, out: int) -> Tensor:
    """windows x places: positions of the elements of each window, the last one repeated."""
    i = torch.arange(out).reshape(-1, 1)
    start, end = i * size // out, ((i + 1) * size + out - 1) // out
    widest = max(-(-(k + 1) * size // out) - k * size // out for k in range(out))
    return torch.minimum(start + torch.arange(widest), end - 1)


def _pool_positions(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Tensor:
    """The same for a pool: places in the padding repeat the nearest one inside."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (-(-reach // stride) if ceil_mode else reach // stride) + 1
    out -= (out - 1) * stride >= size + padding  # no window starts in the padding behind
    start = torch.arange(out).reshape(-1, 1) * stride - padding
    first = torch.clamp((dilation - 1 - start) // dilation, min=0)
    last = torch.clamp((size - 1 - start) // dilation, max=kernel - 1)
    return start + torch.minimum(torch.maximum(torch.arange(kernel), first), last) * dilation


def _max_of_windows(x: Tensor, positions: list[Tensor]) -> tuple[Tensor, Tensor]:
    lead, outs = list(x.shape[: x.dim() - len(positions)]), [p.shape[0] for p in positions]
    space = x.shape[len(lead) :]
    for dim, each in enumerate(positions, len(lead)):
        x = aten.index_select(x, dim, each.reshape(-1))
    values, place = aten.max(_places_last(x, positions).reshape(*lead, *outs, -1), -1)
    table = _table(positions, space).reshape(*outs, -1).expand(*lead, *outs, -1)
    return values, aten.gather(table, -1, place.unsqueeze(-1)).squeeze(-1)


def _places_last(x: Tensor, positions: list[Tensor]) -> Tensor:
    """(…, windows * places, windows * places, …) -> (all windows, all places), one dimension after the other.

    All at once would need more dimensions than backends have.
    """
    windows, places = x.shape[: x.dim() - len(positions)].numel(), 1
    for each in positions:
        split = x.reshape(windows, each.shape[0], each.shape[1], -1, places)
        windows, places = windows * each.shape[0], places * each.shape[1]
        x = split.permute(0, 1, 3, 4, 2)
    return x.reshape(windows, places)


def _table(positions: list[Tensor], space: Sequence[int]) -> Tensor:
    """windows of each dimension x places of each dimension: the element's number in x, row by row"""
    rank, table = len(positions), torch.zeros([1] * 2 * len(positions), dtype=torch.int64)
    for k, each in enumerate(positions):
        shape = [each.shape[0] if d == k else each.shape[1] if d == rank + k else 1 for d in range(2 * rank)]
        table = table * space[k] + each.reshape(shape)
    return table


RULE = Decomposition(
    "pool-indices-by-windows",
    {
        aten.adaptive_max_pool1d.default: adaptive_max_with_indices,
        aten.adaptive_max_pool2d.default: adaptive_max_with_indices,
        aten.adaptive_max_pool3d.default: adaptive_max_with_indices,
        aten.max_pool1d_with_indices.default: partial(max_pool_with_indices, rank=1),
        aten.max_pool2d_with_indices.default: partial(max_pool_with_indices, rank=2),
        aten.max_pool3d_with_indices.default: partial(max_pool_with_indices, rank=3),
    },
    float_reason="finds the place of a maximum: equal integers would hide it",
)
