"""Fills of a mask (-inf, -1e9, finfo.min) have no vote on a range, where every reader forgets how low they are.

What a reader can tell apart is found by experiment: it is run on numbers of the measured range with some of them at the
fill, and again with those at the floor. Equal to a quarter of an int8 step: it cannot tell.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ingot.graph import constant_of, is_float
from ingot.plan.spans import Span
from ingot.ranges import Stats
from ingot.semantics import Effect, effect_of, operands
from ingot.semantics.encoding import Unfit
from ingot.semantics.trial import Setup, TrialBuilder

GAP = 1024.0  # a fill lies that many times further from zero than everything else
LOUD = 1e3  # and no nearer than this
REACH = 8.0  # exp(-8) is less than a tenth of an int8 step of a probability
CANNOT_TELL = 1 / 1024


def body(stats: Stats) -> Span | None:
    """The range without fills: what lies before a gap in the histogram, going down from zero; None without a gap."""
    if stats.nonfinite:
        return (stats.min, stats.max) if stats.finite else None
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


def floor_of(span: Span) -> float:
    return min(span[0], span[1] - REACH)


def forgotten(value: Node, fill: float, span: Span) -> bool:
    """Every reader, at once or behind ops that only carry the value on, gives the same for fill and floor."""
    return bool(value.users) and all(_forgets(user, value, fill, span) for user in value.users)


def _forgets(reader: Node, value: Node, fill: float, span: Span) -> bool:
    if not is_float(reader):
        return False
    effect: Effect = effect_of(reader, constant_of)
    if any(operands(reader)[i] is value for i in effect.carriers):
        return forgotten(reader, fill, span)
    try:
        return _cannot_tell(reader, value, fill, span)
    except (Unfit, RuntimeError):
        return False


def _cannot_tell(reader: Node, value: Node, fill: float, span: Span) -> bool:
    trial = TrialBuilder(reader, Setup(torch.float32, "small", 0, shrunk=True), constant_of).build()
    generator = torch.Generator().manual_seed(3)

    def numbers(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, generator=generator) * (span[1] - span[0]) + span[0]

    floats = [numbers(s.shape) for s in trial.slots]
    masked = [torch.rand(s.shape, generator=generator) < 0.3 for s in trial.slots]
    mine = [operands(reader)[s.operand] is value for s in trial.slots]
    low, far = (
        trial.run([torch.where(m & own, at, f) for f, m, own in zip(floats, masked, mine, strict=True)])
        for at in (floor_of(span), fill)
    )
    return bool(torch.isfinite(far).all()) and float((low - far).abs().max()) <= CANNOT_TELL * float(far.abs().max())
