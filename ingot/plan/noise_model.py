"""The error that a way of storing a value makes, from its histogram, and how much of it reaches the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ingot.calibrate.sensitivity import operand_key
from ingot.calibrate.statistics import Ranges, Stats
from ingot.capture.op_semantics import Effect, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, value_name, value_of
from ingot.plan.model import QParams
from ingot.plan.value_ranges import Span

Points = tuple[np.ndarray, np.ndarray]  # numbers and their shares, which add up to one
PER_BIN = 3  # numbers that stand for one bin of a histogram: a sixteenth of an octave
SAMPLE = 4096  # elements of a constant that are looked at
# Rounding errs both ways and averages out over a sum; clipping always errs inwards, and on the strongest numbers. How
# much more that costs depends on the net: at 1 and at 4 the chosen ranges cost one trained CNN 3 dB against min-max,
# at 16 another loses 1.5 dB. So this is only where the search starts (ingot/rehearse.py).
CLIPPED = 16.0
NOTHING: Points = (np.zeros(1), np.ones(1))


@dataclass
class Noise:
    """Answers about values of one program; each is worked out once."""

    ranges: Ranges
    effects: Mapping[Node, Effect]
    mask_fills: Mapping[Node, Span] = field(default_factory=dict)
    _points: dict[Node, Points] = field(default_factory=dict)

    def points(self, value: Node) -> Points:
        if value not in self._points:
            found = self._find_points(value)
            self._points[value] = _within(found, self.mask_fills[value]) if value in self.mask_fills else found
        return self._points[value]

    def _find_points(self, value: Node) -> Points:
        constant = constant_of(value)
        if constant is not None:
            return _of_constant(constant)
        stats = self.ranges.values.get(value_name(value))
        if stats is not None:
            return _of_stats(stats)
        effect = self.effects.get(value)
        carried = [self.points(operands(value)[i]) for i in effect.carriers] if effect else []
        return mixed([(p, 1.0 / len(carried)) for p in carried]) if carried else NOTHING

    def power(self, value: Node) -> float:
        x, share = self.points(value)
        return float(np.dot(x * x, share))

    def rounding(self, value: Node, step: float) -> float:
        """Mean square error of rounding to steps of this size; zero is always exact."""
        x, share = self.points(value)
        return step * step / 12 * float(share[x != 0].sum())

    def sensitivity(self, value: Node) -> float:
        """Of an error in the value as it is stored."""
        measured = self.ranges.sensitivity.get(value_name(value))
        return measured if isinstance(measured, float) else self._unmeasured(value)

    def sensitivity_at(self, reader: Node, operand: int) -> float:
        """Of an error in what one reader takes."""
        value = operands(reader)[operand]
        measured = self.ranges.sensitivity.get(operand_key(value_name(reader), value_name(value), operand))
        return measured if isinstance(measured, float) else self.sensitivity(value)

    def of_weight(self, reader: Node, weight: torch.Tensor, storage: QParams) -> float:
        """Noise at the outputs from rounding a weight, channel by channel where its gains are known."""
        measured = self.ranges.sensitivity.get(operand_key(value_name(reader), value_name(operands(reader)[1]), 1))
        errors = weight_errors(weight, storage, weight_axis(reader) or 0)
        if isinstance(measured, tuple) and len(measured) == len(errors):
            return float(torch.dot(errors.double(), torch.tensor(measured, dtype=torch.float64)))
        share = float(errors.mean()) / max(float(weight.detach().square().mean()), 1e-30)
        return share * self.power(reader) * self.sensitivity(reader)

    def _unmeasured(self, value: Node) -> float:
        """A value that only a rewrite makes, or that no derivative reaches: its noise counts as an output's."""
        power = self.power(value)
        return 1.0 / power if power > 0 else 0.0


def mixed(parts: list[tuple[Points, float]]) -> Points:
    """Several values as one distribution, each with its weight."""
    return np.concatenate([p[0] for p, _ in parts]), np.concatenate([p[1] * w for p, w in parts])


@dataclass(frozen=True)
class Reading:
    """Numbers that are stored, how much an error in them counts, and what their only reader computes of them."""

    points: Points
    weight: float = 1.0
    function: Callable[[np.ndarray], np.ndarray] | None = None


def heard(readings: Sequence[Reading], storages: Sequence[QParams], clipped: float = CLIPPED) -> np.ndarray:
    """What storing costs for each storage, over all readings."""
    found = [r.weight * errors(r.points, storages, clipped, r.function) for r in readings]
    return np.sum(found, axis=0)


def errors(
    points: Points,
    storages: Sequence[QParams],
    clipped: float = CLIPPED,
    function: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Mean square of value - stored value for each storage: rounding inside the range, clipping outside."""
    scale = np.array([s.scale for s in storages])[:, None]
    zero = np.array([s.zero_point for s in storages])[:, None]
    low, high = storages[0].qmin, storages[0].qmax
    x, share = points
    steps = np.rint(x / scale) + zero
    stored = (np.clip(steps, low, high) - zero) * scale
    lost = (x - stored if function is None else function(x) - function(stored)) ** 2
    return np.where((steps < low) | (steps > high), clipped, 1.0) * lost @ share


def weight_errors(weight: torch.Tensor, storage: QParams, axis: int) -> torch.Tensor:
    """Mean square of what rounding takes from each slice of a weight along `axis`."""
    w = weight.detach().float()
    scale = torch.tensor(storage.scale, dtype=torch.float32)
    if storage.axis is not None:
        scale = scale.reshape([-1 if d == storage.axis else 1 for d in range(w.dim())])
    lost = w - (w / scale).round().clamp(storage.qmin, storage.qmax) * scale
    return lost.transpose(0, axis).flatten(1).square().mean(1)


def elements(value: Node) -> int:
    """How many numbers there are; a size that is known only at run time counts as the one it was captured with."""
    val = value_of(value)
    count = 1
    for d in getattr(val, "shape", ()):
        count *= known_size(d)
    return count


def known_size(number: Any) -> int:
    """A symbolic number as what it was when the program was captured."""
    return number if isinstance(number, int) else int(getattr(getattr(number, "node", None), "hint", None) or 1)


def _within(points: Points, span: Span) -> Points:
    """Without the fills of a mask."""
    inside = points[0] >= span[0]
    return (points[0][inside], points[1][inside] / points[1][inside].sum()) if inside.any() else NOTHING


def _of_constant(tensor: torch.Tensor) -> Points:
    flat = tensor.detach().float().reshape(-1)
    if not flat.numel():
        return NOTHING
    kept = flat[:: max(1, flat.numel() // SAMPLE)].double().numpy()
    return kept, np.full(len(kept), 1.0 / len(kept))


def _of_stats(stats: Stats) -> Points:
    """The sample, and both ends, of which there was one each at least: an outlier must not be free to clip."""
    if not stats.histogram:
        return NOTHING
    x, count = (t.numpy() for t in stats.points(PER_BIN))
    ends, one = np.array([stats.min, stats.max]), 1.0 / max(stats.finite, 1)
    share = np.concatenate([count / count.sum(), [one, one]])
    return np.concatenate([x, ends]), share / share.sum()
