"""Sharing is a decision with a price: edge by edge, does the reader take the producer's scale, or requantize?

A requantize costs one cheap op. Sharing costs what the readers of the finer side can tell: the noise that reaches the
outputs, predicted from ranges and gains. Where nobody gains there is no requantize.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of
from ingot.plan.cost_model import BYTES
from ingot.plan.noise_model import elements
from ingot.plan.precision import ENOUGH, SILENCE
from ingot.plan.state import Place, Work, activations, value_in
from ingot.plan.value_ranges import Span, hull, width, with_zero

FREE_BITS = 0.5  # a reader that can use it may be asked to give up this much precision to save a requantize
AUDIBLE = 1e-3  # of the noise at the outputs: less than this is no reason for anything


@dataclass
class _Pool:
    """A class as it grows: its range, the gain of what is rounded in it, and whether its scale is given."""

    span: Span
    gain: float
    fixed: bool = False

    def noise(self, levels: int) -> float:
        return (width(self.span) / levels) ** 2 / 12 * self.gain


def share(work: Work) -> None:
    """Edge by edge, the cheapest first: does the reader take the producer's scale, or requantize?"""
    pools = _pools(work)
    edges = sorted(((_lost(p, r, pools, work), i, p, r) for i, (p, r) in enumerate(_edges(work))), key=lambda e: e[:2])
    for _, _, producer, reader in edges:
        if not work.scale_groups.same(producer, reader):
            _decide(producer, reader, pools, work)


def _decide(producer: Place, reader: Place, pools: dict[Place, _Pool], work: Work) -> None:
    apart, together, joined = _prices(producer, reader, pools, work)
    bits = _lost(producer, reader, pools, work)
    if joined is None or _worth_a_requantize(together - apart, bits, producer, work):
        work.because[reader] = (*work.because.get(reader, ()), _told(producer, bits, apart, together, joined, work))
        return
    work.scale_groups.union(producer, reader, f"{reader[0].name} reads {producer[0].name} as it is stored")
    pools[work.scale_groups.find(producer)] = joined


def _prices(producer: Place, reader: Place, pools: dict[Place, _Pool], work: Work) -> tuple[float, float, _Pool | None]:
    """Noise of the two classes apart and as one; None where a given scale would clip what the other holds."""
    a, b = (pools[work.scale_groups.find(p)] for p in (producer, reader))
    levels = _levels(producer, work)
    span = a.span if a.fixed else b.span if b.fixed else hull([a.span, b.span])
    twice = _gain_at(reader, work)  # as one, the value is rounded once and not again for this reader
    joined = _Pool(span, max(a.gain + b.gain - twice, 0.0), a.fixed or b.fixed)
    fits = not (a.fixed and b.fixed) and width(hull([a.span, b.span])) <= width(span) * 1.01
    return a.noise(levels) + b.noise(levels), joined.noise(levels), joined if fits or _same_pin(a, b) else None


def _same_pin(a: _Pool, b: _Pool) -> bool:
    return a.fixed and b.fixed and a.span == b.span


def _worth_a_requantize(lost: float, bits: float, producer: Place, work: Work) -> bool:
    """By the exchange rate of the recipe; and in any case where a reader would lose bits that can be heard."""
    total = work.total_noise + ENOUGH
    rate = work.worth / math.log(2) / total
    dear = rate * lost > _time(producer, work) / max(work.total_time, 1.0)
    return lost > 0 and (dear or (bits > FREE_BITS and lost > AUDIBLE * work.total_noise))


def _told(producer: Place, bits: float, apart: float, together: float, joined: _Pool | None, work: Work) -> str:
    name, spent = producer[0].name, _time(producer, work) / max(work.total_time, 1.0)
    if joined is None:
        return f"requantized: the scale that is given here does not hold the range of {name}"
    before, after = (_decibel(work.total_noise, n - apart) for n in (apart, together))
    return (
        f"requantized, for {spent:.1%} of time: sharing would cost {name} {bits:.1f} bits for its other readers, "
        f"and the outputs {after - before:.1f} dB"
    )


def _decibel(total: float, more: float) -> float:
    return 10 * math.log10(max(total + more, SILENCE))


def _pools(work: Work) -> dict[Place, _Pool]:
    groups = {work.scale_groups.find(g[0]): g for g in work.scale_groups.groups()}
    return {root: _pool(members, work) for root, members in groups.items()}


def _pool(members: list[Place], work: Work) -> _Pool:
    gain = sum(entry_sensitivity(m, work) for m in members)
    for m in members:
        if m in work.fixed_qparams:
            return _Pool(work.fixed_qparams[m][0].span, gain, True)
    return _Pool(with_zero(hull(work.span(m) for m in members)), gain)


def entry_sensitivity(place: Place, work: Work) -> float:
    """The gain of the rounding that happens in a slot; none where the numbers were rounded before in the same class."""
    node, operand = place
    if operand is None:
        carried = work.carried(node) if node.op == "call_function" else ()
        return 0.0 if carried else work.noise.sensitivity(node)
    producer = (value_in(place), None)
    return 0.0 if work.scale_groups.same(producer, place) else _gain_at(place, work)


def _gain_at(reader: Place, work: Work) -> float:
    node, operand = reader
    assert operand is not None
    return work.noise.sensitivity(value_in(reader)) if node.op == "output" else work.noise.sensitivity_at(node, operand)


def _lost(producer: Place, reader: Place, pools: dict[Place, _Pool], work: Work) -> float:
    """Bits that the producer's class loses if both share one scale."""
    a, b = (pools[work.scale_groups.find(p)] for p in (producer, reader))
    own = width(a.span)
    return math.log2(max(width(hull([a.span, b.span])) / own, 1.0)) if own > 0 else 0.0


def _levels(place: Place, work: Work) -> int:
    if place in work.fixed_qparams:
        return work.fixed_qparams[place][0].qmax - work.fixed_qparams[place][0].qmin
    form = work.format_of(place)
    return form.qmax - form.qmin


def _time(producer: Place, work: Work) -> float:
    prices, precision = work.target.cost, work.precisions.get(producer[0], "int8")
    return prices.op + 2 * prices.byte * BYTES[precision] * elements(producer[0])


def _edges(work: Work) -> Iterator[tuple[Place, Place]]:
    """From each stored value to each reader that takes integers of the same type."""
    for node in work.precisions:
        if work.is_integer(node):
            for i in activations(node, work):
                yield from _edge((operands(node)[i], None), (node, i), work)
    for place in work.fixed_qparams:
        if place[0].op == "output":
            yield from _edge((value_in(place), None), place, work)


def _edge(producer: Place, reader: Place, work: Work) -> Iterator[tuple[Place, Place]]:
    if (
        constant_of(producer[0]) is None
        and work.is_stored(producer[0])
        and _type(producer, work) == _type(reader, work)
    ):
        yield producer, reader


def _type(place: Place, work: Work) -> str:
    return work.fixed_qparams[place][0].dtype if place in work.fixed_qparams else work.format_of(place).dtype
