"""The value range of a tensor, from calibration statistics or from a constant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.fx import Node

from ingot.calibrate.statistics import Ranges
from ingot.capture.op_semantics import Effect, operands
from ingot.core.fx import constant_of, value_name

ValueRange = tuple[float, float]


def value_range_of(value: Node, ranges: Ranges, effects: Mapping[Node, Effect]) -> ValueRange:
    """Min and max of a constant; else from calibration. A value that a rewrite created has the hull of its inputs."""
    constant = constant_of(value)
    if constant is not None and not constant.numel():
        return 0.0, 0.0
    if constant is not None:
        return float(constant.detach().min()), float(constant.detach().max())
    stats, effect = ranges.values.get(value_name(value)), effects.get(value)
    if stats is None and effect is not None and effect.carriers:
        carried = [value_range_of(operands(value)[i], ranges, effects) for i in effect.carriers]
        return hull([*carried, *((c, c) for c in effect.constants)])
    return (stats.min, stats.max) if stats is not None else (0.0, 0.0)


def hull(ranges: Iterable[ValueRange]) -> ValueRange:
    """The smallest range that contains all of them."""
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def with_zero(value_range: ValueRange) -> ValueRange:
    """The range extended to contain zero."""
    return min(value_range[0], 0.0), max(value_range[1], 0.0)


def width(value_range: ValueRange) -> float:
    """The width of the range extended to contain zero."""
    low, high = with_zero(value_range)
    return high - low
