"""Numbers that say where they came from: distinct values on a curved grid, found again in O(1) each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

# The grid is curved (sinh) because on an even one the mean of two elements, or of all, may land on a third.
CURVE = 2.0
GOLDEN = 0.6180339887498949


class Unfit(Exception):
    """This experiment cannot be set up."""


@dataclass(frozen=True)
class Encoding:
    """`values[i]` is the number at place i; the k-th smallest of them stands at place `place[k]`."""

    table: torch.Tensor
    place: torch.Tensor
    values: torch.Tensor
    scale: float
    shift: float

    def find(self, out: torch.Tensor) -> torch.Tensor:
        """For each number the place it was taken from, or -1."""
        n = self.table.numel()
        t = torch.asinh(out * (math.sinh(CURVE) / self.scale)).div_(CURVE)
        rank = t.add_(1).mul_(n / 2).sub_(self.shift).round_().nan_to_num_(-1.0).clamp_(-1, n).long()
        inside = (rank >= 0) & (rank < n)
        rank = rank.clamp_(0, n - 1)
        return torch.where(inside & (self.table[rank] == out), self.place[rank], -1)


def encode(n: int, dtype: torch.dtype, scale: float, shift: float, generator: torch.Generator) -> Encoding:
    """n distinct numbers between -scale and scale in random order, denser around zero, never symmetric."""
    t = (torch.arange(n, dtype=torch.float64) + shift).mul_(2 / n).sub_(1)
    exact = torch.sinh(t * CURVE).mul_(scale / math.sinh(CURVE))
    table = exact.to(dtype).double()
    if dtype != torch.float64:
        _demand_distinct(table, exact)
    order = torch.randperm(n, generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(n)
    return Encoding(table, place, table[order], scale, shift)


def _demand_distinct(table: torch.Tensor, exact: torch.Tensor) -> None:
    if table.numel() < 2:
        return
    if not bool(((table - exact).abs().amax() * 4 < exact.diff().amin()).item()):
        raise Unfit(f"{table.numel()} elements are too many to stay distinct in a narrow float type")


def shift_of(run: int) -> float:
    """Offsets that fill (0, 1) evenly and stay off 0 and 0.5, where the grid would mirror itself."""
    shift = (0.31 + run * GOLDEN) % 1.0
    return shift if abs(shift - 0.5) > 0.01 and 0.01 < shift < 0.99 else shift * 0.7 + 0.05
