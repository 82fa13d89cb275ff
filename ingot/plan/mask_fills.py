"""Mask fill values (-inf, -1e9, finfo.min) are excluded from range estimation where no consumer depends on them.

Whether a consumer depends on a fill value is found by experiment: the op runs on random values of the measured range
with some elements at the fill value, and again with those elements at a candidate minimum. If the results agree within
a quarter of an int8 step, the range may end at that minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from ingot.calibrate.statistics import Stats
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.harness import ProbeBuilder, ProbeConfig
from ingot.capture.op_semantics.tagged_values import ProbeError
from ingot.core.fx import constant_of, is_float, value_name
from ingot.plan.value_ranges import ValueRange

if TYPE_CHECKING:
    from ingot.plan.constraints import Constraints

FILL_GAP = 1024.0  # a fill value is that many times further from zero than all other values
MIN_FILL_MAGNITUDE = 1e3
SOFTMAX_MARGIN = 8.0  # exp(-8) is less than a tenth of an int8 step of a probability
RELATIVE_TOLERANCE = 1 / 1024  # of results that count as equal


def bulk_range(stats: Stats) -> ValueRange | None:
    """The range without fill values: from max down to the first gap in the histogram; None without a gap."""
    if stats.nonfinite:
        return (stats.min, stats.max) if stats.finite and stats.neginf == stats.nonfinite else None
    magnitude, lowest = max(stats.max, 0.0), 0.0
    for near, far in _negative_bins(stats):
        if near > max(magnitude * FILL_GAP, MIN_FILL_MAGNITUDE):
            return lowest, stats.max
        magnitude, lowest = max(magnitude, far), -far
    return None


def _negative_bins(stats: Stats) -> list[tuple[float, float]]:
    """The magnitudes of both edges of each negative bin, smallest first."""
    edges = zip(*(e.tolist() for e in stats.edges()), strict=True)
    return sorted((-high, -low) for low, high in edges if low < 0)


def range_without_fills(value: Node, found: Constraints) -> ValueRange | None:
    """The range down to the highest minimum that no consumer can tell from the fill value; None where there is none."""
    fill_and_rest = _fill_and_rest(value, found)
    if fill_and_rest is None:
        return None
    fill, rest = fill_and_rest
    minima = (m for m in sorted(_candidate_minima(value, rest, found), reverse=True) if fill < m)
    minimum = next((m for m in minima if _ignored_by_consumers(value, fill, m, rest, found)), None)
    return None if minimum is None else (minimum, rest[1])


def _fill_and_rest(value: Node, found: Constraints) -> tuple[float, ValueRange] | None:
    """The fill value and the range of all other values: from statistics, or from the constant of an additive mask."""
    constant = constant_of(value)
    if constant is not None and is_float(value):
        return _split(constant.detach()) if any(u in found.mask_fills for u in value.users) else None
    stats = found.ranges.values.get(value_name(value)) if is_float(value) else None
    rest = bulk_range(stats) if stats is not None else None
    return None if stats is None or rest is None else (-torch.inf if stats.nonfinite else stats.min, rest)


def _split(constant: torch.Tensor) -> tuple[float, ValueRange] | None:
    if not constant.numel() or constant.isnan().any():
        return None
    fill = float(constant.min())
    rest = constant[constant > fill]
    return fill, ((float(rest.min()), float(rest.max())) if rest.numel() else (0.0, 0.0))


def _candidate_minima(value: Node, rest: ValueRange, found: Constraints) -> set[float]:
    """Low enough for a softmax, or for the ranges that the consumers of the value have without fills."""
    low, high = rest
    after = [found.mask_fills[u] for u in value.users if u in found.mask_fills]
    deeper = (low - k * (r[1] - r[0]) for r in after for k in (1, 2))
    return {min(low, high - SOFTMAX_MARGIN), low - SOFTMAX_MARGIN, *(r[0] for r in after), *deeper}


def _ignored_by_consumers(value: Node, fill: float, minimum: float, rest: ValueRange, found: Constraints) -> bool:
    """Every consumer, direct or behind ops that only carry the value on, computes the same for fill and minimum."""
    return bool(value.users) and all(_ignored_by(user, value, fill, minimum, rest, found) for user in value.users)


def _ignored_by(consumer: Node, value: Node, fill: float, minimum: float, rest: ValueRange, found: Constraints) -> bool:
    if not is_float(consumer):
        return False
    try:
        if _same_result(consumer, value, fill, minimum, rest, found):
            return True
    except (ProbeError, RuntimeError):
        return False
    carriers = found.effects[consumer].carriers if consumer in found.effects else ()
    carried = any(operands(consumer)[i] is value for i in carriers)
    return carried and consumer not in found.mask_fills and _ignored_by_consumers(consumer, fill, minimum, rest, found)


def _same_result(
    consumer: Node, value: Node, fill: float, minimum: float, rest: ValueRange, found: Constraints
) -> bool:
    """By experiment. A result with fill values of its own is compared above its own minimum."""
    probe = ProbeBuilder(consumer, ProbeConfig(torch.float32, "small", 0, shrunk=True), constant_of).build()
    generator, read = torch.Generator().manual_seed(3), [operands(consumer)[s.operand] for s in probe.float_args]
    ranges = [rest if v is value else found.value_range(v) for v in read]
    floats = [
        torch.rand(s.shape, generator=generator) * (b - a) + a
        for s, (a, b) in zip(probe.float_args, ranges, strict=True)
    ]
    masks = [_random_mask(s.shape, generator) for s in probe.float_args]
    with_minimum, with_fill = (
        probe.run([torch.where(m, at, f) if v is value else f for f, m, v in zip(floats, masks, read, strict=True)])
        for at in (minimum, fill)
    )
    if consumer in found.mask_fills:
        with_minimum, with_fill = (t.clamp(min=found.mask_fills[consumer][0]) for t in (with_minimum, with_fill))
    largest = float(with_fill.abs().max())
    difference = float((with_minimum - with_fill).abs().max())
    return bool(torch.isfinite(with_fill).all()) and difference <= RELATIVE_TOLERANCE * largest


def _random_mask(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Elements to fill: never all along a dimension, or a maximum over it would be a fill value."""
    chosen = torch.rand(shape, generator=generator) < 0.5
    for d, size in enumerate(shape):
        if size > 1:
            chosen.select(d, 0).fill_(False)
    return chosen
