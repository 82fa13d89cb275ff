"""Is one channel further from its graph than the other channels at the same positions?

A tie that rounds differently changes all channels of a position alike. So each difference is divided by the rms of the
other channels at its position. What remains scatters like Student's t, with as many degrees of freedom as its kurtosis
says: differences that are steps here and there have few, and then little is significant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.verify.chance import degrees_of_freedom, variance_chance
from ingot.verify.slices import Differences, View, slice_sums

FEWEST_CHANNELS = 8  # fewer do not tell how much a position scatters
FEWEST_VALUES = 500  # fewer do not tell how heavy the tails are; runs with rounding noise add theirs


@dataclass(frozen=True)
class Scatter:
    """Sums over the squares of relative differences, and over their squares."""

    own: Tensor  # by channel
    own_fourth: Tensor
    square: float  # of all channels, and of runs with rounding noise
    fourth: float
    values: float


def channel_scatter(given: Differences, view: View, unit: Tensor) -> Scatter | None:
    """The relative differences of a view; None if its slices do not lie along one axis, or are too few."""
    axes = {_axis(k) for k in view.keys}
    if axes == {None} or len(axes) > 1 or view.size < FEWEST_CHANNELS:
        return None
    (axis,) = axes
    assert axis is not None
    own, *runs = [_relative(run, view, unit, axis) for run in (given.graph, *given.noisy)]
    every = [t for run in (own, *runs) for t in run]
    return Scatter(
        slice_sums(iter(own), view), slice_sums((t.square() for t in own), view),
        sum(float(t.sum()) for t in every), sum(float(t.square().sum()) for t in every),
        float(sum(t.numel() for t in every)),
    )  # fmt: skip


def scatter_chance(i: int, of: Scatter, values: float, share: float) -> float:
    """Chance that a channel of so many values scatters as much as channel `i`, if it is like the others."""
    own, fourth = float(of.own[i]), float(of.own_fourth[i])
    rest, rest_fourth, rest_values = of.square - own, of.fourth - fourth, of.values - values
    if rest <= 0 or rest_values < FEWEST_VALUES:
        return 1.0
    kurtosis = max(3.0, rest_values * rest_fourth / rest**2) + 2 * math.sqrt(24 / rest_values)  # and two deviations
    known = min(degrees_of_freedom(kurtosis), rest_values)
    return variance_chance((own / values) / (rest / rest_values), max(1.0, values * share), known)


def _axis(keys: Tensor) -> int | None:
    """The only axis along which the numbers of the slices vary."""
    varying = [a for a in range(keys.dim()) if not torch.equal(keys, keys.narrow(a, 0, 1).expand_as(keys))]
    return varying[0] if len(varying) == 1 else None


def _relative(run: Sequence[Tensor], view: View, unit: Tensor, axis: int) -> list[Tensor]:
    """The square of each difference, in units of the mean square of the other channels at its position."""
    squares = [(t / unit[k]).square() for t, k in zip(run, view.keys, strict=True)]
    usual = sum(float(s.sum()) for s in squares) / max(1, sum(s.numel() for s in squares))
    return list(_over_others(squares, axis, usual))


def _over_others(squares: Sequence[Tensor], axis: int, usual: float) -> Iterator[Tensor]:
    for s in squares:
        others = (s.sum(axis, keepdim=True) - s + usual) / s.shape[axis]  # one more value, where the others have none
        yield torch.where(others > 0, s / torch.where(others > 0, others, 1.0), 0.0)
