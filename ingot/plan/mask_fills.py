"""Fills of a mask (-inf, -1e9, finfo.min) have no vote on a range, where every reader forgets how low they are.

What a reader can tell apart is found by experiment: it is run on numbers of the measured range with some of them at the
fill, and again with those at the floor. Equal to a quarter of an int8 step: it cannot tell.
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
from ingot.plan.value_ranges import Span

if TYPE_CHECKING:
    from ingot.plan.constraints import Constraints as Facts

GAP = 1024.0  # a fill lies that many times further from zero than everything else
LOUD = 1e3  # and no nearer than this
REACH = 8.0  # exp(-8) is less than a tenth of an int8 step of a probability
CANNOT_TELL = 1 / 1024


def body(stats: Stats) -> Span | None:
    """The range without fills: what lies before a gap in the histogram, going down from zero; None without a gap."""
    if stats.nonfinite:
        return (stats.min, stats.max) if stats.finite and stats.neginf == stats.nonfinite else None
    reach, lowest = max(stats.max, 0.0), 0.0
    for near, far in _downwards(stats):
        if near > max(reach * GAP, LOUD):
            return lowest, stats.max
        reach, lowest = max(reach, far), -far
    return None


def _downwards(stats: Stats) -> list[tuple[float, float]]:
    """The distances from zero of the ends of each negative bin, nearest first."""
    ends = zip(*(e.tolist() for e in stats.edges()), strict=True)
    return sorted((-high, -low) for low, high in ends if low < 0)


def range_without_fills(value: Node, found: Facts) -> Span | None:
    """The range without fills, down to the highest floor that no reader can tell from them; None where one can."""
    filled = _filled(value, found)
    if filled is None:
        return None
    fill, rest = filled
    floors = (f for f in sorted(_floors(value, rest, found), reverse=True) if fill < f)
    floor = next((f for f in floors if _forgotten(value, fill, f, rest, found)), None)
    return None if floor is None else (floor, rest[1])


def _filled(value: Node, found: Facts) -> tuple[float, Span] | None:
    """The fill and the range of everything else: of what was recorded, or of a constant that a filled value reads."""
    constant = constant_of(value)
    if constant is not None and is_float(value):
        return _parts(constant.detach()) if any(u in found.mask_fills for u in value.users) else None
    stats = found.ranges.values.get(value_name(value)) if is_float(value) else None
    rest = body(stats) if stats is not None else None
    return None if stats is None or rest is None else (-torch.inf if stats.nonfinite else stats.min, rest)


def _parts(constant: torch.Tensor) -> tuple[float, Span] | None:
    if not constant.numel() or constant.isnan().any():
        return None
    fill = float(constant.min())
    rest = constant[constant > fill]
    return fill, ((float(rest.min()), float(rest.max())) if rest.numel() else (0.0, 0.0))


def _floors(value: Node, rest: Span, found: Facts) -> set[float]:
    """Where a fill may end up: under the rest, deep enough for one exp, or for what the readers make of it."""
    low, high = rest
    after = [found.mask_fills[u] for u in value.users if u in found.mask_fills]
    deep = (low - k * (t[1] - t[0]) for t in after for k in (1, 2))
    return {min(low, high - REACH), low - REACH, *(t[0] for t in after), *deep}


def _forgotten(value: Node, fill: float, floor: float, rest: Span, found: Facts) -> bool:
    """Every reader, at once or behind ops that only carry the value on, gives the same for fill and floor."""
    return bool(value.users) and all(_forgets(user, value, fill, floor, rest, found) for user in value.users)


def _forgets(reader: Node, value: Node, fill: float, floor: float, rest: Span, found: Facts) -> bool:
    if not is_float(reader):
        return False
    try:
        if _cannot_tell(reader, value, fill, floor, rest, found):
            return True
    except (ProbeError, RuntimeError):
        return False
    carriers = found.effects[reader].carriers if reader in found.effects else ()
    carried = any(operands(reader)[i] is value for i in carriers)
    return carried and reader not in found.mask_fills and _forgotten(reader, fill, floor, rest, found)


def _cannot_tell(reader: Node, value: Node, fill: float, floor: float, rest: Span, found: Facts) -> bool:
    """By experiment; what the reader makes is looked at down to its own floor."""
    probe = ProbeBuilder(reader, ProbeConfig(torch.float32, "small", 0, shrunk=True), constant_of).build()
    generator, read = torch.Generator().manual_seed(3), [operands(reader)[s.operand] for s in probe.float_args]
    spans = [rest if v is value else found.span(v) for v in read]
    floats = [
        torch.rand(s.shape, generator=generator) * (b - a) + a
        for s, (a, b) in zip(probe.float_args, spans, strict=True)
    ]
    masked = [_some(s.shape, generator) for s in probe.float_args]
    low, far = (
        probe.run([torch.where(m, at, f) if v is value else f for f, m, v in zip(floats, masked, read, strict=True)])
        for at in (floor, fill)
    )
    if reader in found.mask_fills:
        low, far = (t.clamp(min=found.mask_fills[reader][0]) for t in (low, far))
    return bool(torch.isfinite(far).all()) and float((low - far).abs().max()) <= CANNOT_TELL * float(far.abs().max())


def _some(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Elements to fill: never all along a dimension, or a maximum over it would be a fill."""
    chosen = torch.rand(shape, generator=generator) < 0.5
    for d, size in enumerate(shape):
        if size > 1:
            chosen.select(d, 0).fill_(False)
    return chosen
