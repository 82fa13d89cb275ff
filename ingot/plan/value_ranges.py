"""The range that was measured for a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.fx import Node

from ingot.calibrate.statistics import Ranges
from ingot.capture.op_semantics import Effect, operands
from ingot.core.fx import constant_of, value_name

Span = tuple[float, float]


def span_of(value: Node, ranges: Ranges, effects: Mapping[Node, Effect]) -> Span:
    """As recorded; a constant's own numbers; for a value that a rewrite made, the hull of what it carries."""
    constant = constant_of(value)
    if constant is not None:
        return float(constant.detach().min()), float(constant.detach().max())
    stats, effect = ranges.values.get(value_name(value)), effects.get(value)
    if stats is None and effect is not None and effect.carriers:
        carried = [span_of(operands(value)[i], ranges, effects) for i in effect.carriers]
        return hull([*carried, *((c, c) for c in effect.constants)])
    return (stats.min, stats.max) if stats is not None else (0.0, 0.0)


def hull(spans: Iterable[Span]) -> Span:
    lows, highs = zip(*spans, strict=True)
    return min(lows), max(highs)


def with_zero(span: Span) -> Span:
    return min(span[0], 0.0), max(span[1], 0.0)


def width(span: Span) -> float:
    low, high = with_zero(span)
    return high - low
