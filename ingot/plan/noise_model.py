"""Predicted output noise: the quantization error of a value's distribution, times the sensitivity to it."""

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
from ingot.plan.plan_data import QParams
from ingot.plan.value_ranges import ValueRange

Distribution = tuple[np.ndarray, np.ndarray]  # values and their probabilities
PointwiseFunction = Callable[[np.ndarray], np.ndarray]
SAMPLES_PER_BIN = 3  # a histogram bin is a sixteenth of an octave
BIN_WIDTH = 1 / 16  # of the widest, relative to the values in it
CONSTANT_SAMPLES = 4096  # elements of a constant that are looked at
# Rounding errors have both signs and average out over a sum. Clipping errors have one sign and hit the largest values.
# How much more they cost depends on the net: with weights 1 and 4 the chosen ranges cost one trained CNN 3 dB against
# min-max, with 16 another one loses 1.5 dB. So this is only where the search over range estimators starts (search.py).
CLIPPING_WEIGHT = 16.0
TOKEN_SCALE_FLOOR = torch.finfo(torch.float32).eps  # of scales that are chosen at run time: smaller values become 0
ALL_ZERO: Distribution = (np.zeros(1), np.ones(1))


@dataclass
class NoiseModel:
    """Answers about the values of one program. Each distribution is computed once."""

    ranges: Ranges
    effects: Mapping[Node, Effect]
    mask_fills: Mapping[Node, ValueRange] = field(default_factory=dict)
    _distributions: dict[Node, Distribution] = field(default_factory=dict)

    def distribution(self, value: Node) -> Distribution:
        """The distribution of a value, without mask fill values."""
        if value not in self._distributions:
            found = self._find_distribution(value)
            fills = self.mask_fills.get(value)
            self._distributions[value] = found if fills is None else _without_fills(found, fills)
        return self._distributions[value]

    def _find_distribution(self, value: Node) -> Distribution:
        constant = constant_of(value)
        if constant is not None:
            return _of_constant(constant)
        stats = self.ranges.values.get(value_name(value))
        if stats is not None:
            return _of_stats(stats)
        effect = self.effects.get(value)
        carried = [self.distribution(operands(value)[i]) for i in effect.carriers] if effect else []
        return mixture([(d, 1.0 / len(carried)) for d in carried]) if carried else ALL_ZERO

    def power(self, value: Node) -> float:
        """Mean square of a value."""
        x, probability = self.distribution(value)
        return float(np.dot(x * x, probability))

    def rounding_error(self, value: Node, scale: float) -> float:
        """Mean square error of rounding at this scale: scale² / 12, and none for zeros, which are exact."""
        x, probability = self.distribution(value)
        return scale * scale / 12 * float(probability[x != 0].sum())

    def constant_error(self, value: Node, constant: float, scale: float) -> float:
        """Mean square error in the value from rounding a constant among its elements at this scale."""
        x, probability = self.distribution(value)
        share = float(probability[np.abs(x - constant) <= abs(constant) * BIN_WIDTH].sum())
        return share * (constant - round(constant / scale) * scale) ** 2

    def sensitivity(self, value: Node) -> float:
        """Output noise per mean square error in the value, read by all its consumers."""
        measured = self.ranges.sensitivity.get(value_name(value))
        return measured if isinstance(measured, float) else self._assumed_sensitivity(value)

    def sensitivity_at(self, consumer: Node, operand: int) -> float:
        """Output noise per mean square error in one operand of one consumer."""
        value = operands(consumer)[operand]
        measured = self.ranges.sensitivity.get(operand_key(value_name(consumer), value_name(value), operand))
        return measured if isinstance(measured, float) else self.sensitivity(value)

    def of_weight(self, consumer: Node, weight: torch.Tensor, qparams: QParams) -> float:
        """Output noise from quantizing a weight, by channel where its sensitivities were measured."""
        measured = self.ranges.sensitivity.get(operand_key(value_name(consumer), value_name(operands(consumer)[1]), 1))
        errors = _weight_quantization_errors(weight, qparams, weight_axis(consumer) or 0)
        if isinstance(measured, tuple) and len(measured) == len(errors):
            return float(torch.dot(errors.double(), torch.tensor(measured, dtype=torch.float64)))
        relative = float(errors.mean()) / max(float(weight.detach().square().mean()), 1e-30)
        return relative * self.power(consumer) * self.sensitivity(consumer)

    def _assumed_sensitivity(self, value: Node) -> float:
        """For a value that a rewrite created, or without a gradient: its relative noise counts as output noise."""
        power = self.power(value)
        return 1.0 / power if power > 0 else 0.0


def mixture(parts: list[tuple[Distribution, float]]) -> Distribution:
    """One distribution from several, each with its weight."""
    return np.concatenate([d[0] for d, _ in parts]), np.concatenate([d[1] * w for d, w in parts])


@dataclass(frozen=True)
class ErrorTerm:
    """A term of an error sum: a distribution, its weight, and the pointwise function through which errors are seen."""

    distribution: Distribution
    weight: float = 1.0
    function: PointwiseFunction | None = None


def weighted_errors(
    terms: Sequence[ErrorTerm], candidates: Sequence[QParams], clipping_weight: float = CLIPPING_WEIGHT
) -> np.ndarray:
    """The error of each candidate, summed over the terms."""
    found = [t.weight * quantization_errors(t.distribution, candidates, clipping_weight, t.function) for t in terms]
    return np.sum(found, axis=0)


def quantization_errors(
    distribution: Distribution,
    candidates: Sequence[QParams],
    clipping_weight: float = CLIPPING_WEIGHT,
    function: PointwiseFunction | None = None,
) -> np.ndarray:
    """Mean square error of each candidate: rounding inside its range, clipping (weighted) outside."""
    scale = np.array([c.scale for c in candidates])[:, None]
    zero = np.array([c.zero_point for c in candidates])[:, None]
    qmin, qmax = candidates[0].qmin, candidates[0].qmax
    x, probability = distribution
    steps = np.rint(x / scale) + zero
    dequantized = (np.clip(steps, qmin, qmax) - zero) * scale
    error = (x - dequantized if function is None else function(x) - function(dequantized)) ** 2
    return np.where((steps < qmin) | (steps > qmax), clipping_weight, 1.0) * error @ probability


def _weight_quantization_errors(weight: torch.Tensor, qparams: QParams, axis: int) -> torch.Tensor:
    """Mean square quantization error of each slice of a weight along `axis`."""
    w = weight.detach().float()
    scale = torch.tensor(qparams.scale, dtype=torch.float32)
    if qparams.axis is not None:
        scale = scale.reshape([-1 if d == qparams.axis else 1 for d in range(w.dim())])
    error = w - (w / scale).round().clamp(qparams.qmin, qparams.qmax) * scale
    return error.transpose(0, axis).flatten(1).square().mean(1)


def elements(value: Node) -> int:
    """The number of elements; a dynamic dimension counts with its size at capture."""
    val = value_of(value)
    count = 1
    for d in getattr(val, "shape", ()):
        count *= size_hint(d)
    return count


def size_hint(number: Any) -> int:
    """A symbolic integer as its value at capture."""
    return number if isinstance(number, int) else int(getattr(getattr(number, "node", None), "hint", None) or 1)


def _without_fills(distribution: Distribution, rest: ValueRange) -> Distribution:
    x, probability = distribution
    inside = x >= rest[0]
    return (x[inside], probability[inside] / probability[inside].sum()) if inside.any() else ALL_ZERO


def _of_constant(tensor: torch.Tensor) -> Distribution:
    flat = tensor.detach().float().reshape(-1)
    if not flat.numel():
        return ALL_ZERO
    kept = flat[:: max(1, flat.numel() // CONSTANT_SAMPLES)].double().numpy()
    return kept, np.full(len(kept), 1.0 / len(kept))


def _of_stats(stats: Stats) -> Distribution:
    """The histogram, and min and max with one element each: else clipping an outlier would look free."""
    if not stats.histogram:
        return ALL_ZERO
    x, count = (t.numpy() for t in stats.points(SAMPLES_PER_BIN))
    ends, one = np.array([stats.min, stats.max]), 1.0 / max(stats.finite, 1)
    probability = np.concatenate([count / count.sum(), [one, one]])
    return np.concatenate([x, ends]), probability / probability.sum()
