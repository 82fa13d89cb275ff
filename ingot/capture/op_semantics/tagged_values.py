"""Tagged values: distinct numbers on a non-uniform grid, mapped back to their positions in O(1) each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

# The grid is curved (sinh): on a uniform grid the mean of some elements may equal another element.
CURVE = 2.0
GOLDEN_RATIO = 0.6180339887498949


class ProbeError(Exception):
    """The op cannot be probed in this configuration."""


@dataclass(frozen=True)
class TaggedValues:
    """`values[i]` is the number at position i. `position[k]` is the position of the k-th smallest."""

    table: torch.Tensor
    position: torch.Tensor
    values: torch.Tensor
    scale: float
    shift: float

    def positions_of(self, out: torch.Tensor) -> torch.Tensor:
        """For each number its position in `values`, or -1."""
        n = self.table.numel()
        t = torch.asinh(out * (math.sinh(CURVE) / self.scale)).div_(CURVE)
        rank = t.add_(1).mul_(n / 2).sub_(self.shift).round_().nan_to_num_(-1.0).clamp_(-1, n).long()
        in_range = (rank >= 0) & (rank < n)
        rank = rank.clamp_(0, n - 1)
        return torch.where(in_range & (self.table[rank] == out), self.position[rank], -1)


def tag_values(n: int, dtype: torch.dtype, scale: float, shift: float, generator: torch.Generator) -> TaggedValues:
    """n distinct numbers between -scale and scale in random order, denser around zero, never symmetric."""
    t = (torch.arange(n, dtype=torch.float64) + shift).mul_(2 / n).sub_(1)
    exact = torch.sinh(t * CURVE).mul_(scale / math.sinh(CURVE))
    table = exact.to(dtype).double()
    if dtype != torch.float64:
        _check_distinct(table, exact)
    order = torch.randperm(n, generator=generator)
    position = torch.empty_like(order)
    position[order] = torch.arange(n)
    return TaggedValues(table, position, table[order], scale, shift)


def _check_distinct(table: torch.Tensor, exact: torch.Tensor) -> None:
    """Raise ProbeError unless rounding to the dtype keeps all values apart."""
    if table.numel() < 2:
        return
    if not bool(((table - exact).abs().amax() * 4 < exact.diff().amin()).item()):
        raise ProbeError(f"{table.numel()} elements cannot stay distinct in a low-precision float type")


def shift_of(run: int) -> float:
    """Grid offsets that cover (0, 1) evenly and avoid 0 and 0.5, where the grid is symmetric."""
    shift = (0.31 + run * GOLDEN_RATIO) % 1.0
    return shift if abs(shift - 0.5) > 0.01 and 0.01 < shift < 0.99 else shift * 0.7 + 0.05
