"""For each edge: does the consumer use the producer's scale, or requantize?

A requantize costs one cheap op. A shared scale costs resolution on the finer side: output noise, predicted from ranges
and sensitivities. There is no requantize where it does not reduce the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of
from ingot.plan.cost_model import BYTES
from ingot.plan.noise_model import elements
from ingot.plan.precision import NOISE_EPSILON, NOISE_FLOOR
from ingot.plan.solver_state import Point, SolverState, quantized_operands, value_at
from ingot.plan.value_ranges import ValueRange, hull, width, with_zero

TOLERATED_BITS = 0.5  # resolution that a consumer may lose to save a requantize
SIGNIFICANT_NOISE = 1e-3  # of the total output noise: less is no reason to requantize


@dataclass
class _ScaleGroup:
    """A scale group as it grows: its range, the summed sensitivity of its roundings, and whether its scale is given."""

    value_range: ValueRange
    sensitivity: float
    fixed: bool = False

    def noise(self, levels: int) -> float:
        return (width(self.value_range) / levels) ** 2 / 12 * self.sensitivity


Groups = dict[Point, _ScaleGroup]  # by the representative of each group


def share_scales(state: SolverState) -> None:
    """Decide edge by edge, those with the smallest loss of resolution first."""
    groups = _scale_groups(state)
    edges = [(_lost_bits(p, c, groups, state), i, p, c) for i, (p, c) in enumerate(_edges(state))]
    for _, _, producer, consumer in sorted(edges, key=lambda e: e[:2]):
        if not state.scale_groups.same(producer, consumer):
            _share_or_requantize(producer, consumer, groups, state)


def _share_or_requantize(producer: Point, consumer: Point, groups: Groups, state: SolverState) -> None:
    apart, together, shared = _compare_noise(producer, consumer, groups, state)
    bits = _lost_bits(producer, consumer, groups, state)
    if shared is None or _requantize_pays(together - apart, bits, producer, state):
        why = _requantize_reason(producer, bits, apart, together, shared, state)
        state.because[consumer] = (*state.because.get(consumer, ()), why)
        return
    state.scale_groups.union(producer, consumer, f"{consumer[0].name} reads {producer[0].name} without a requantize")
    groups[state.scale_groups.find(producer)] = shared


def _compare_noise(
    producer: Point, consumer: Point, groups: Groups, state: SolverState
) -> tuple[float, float, _ScaleGroup | None]:
    """Noise of two groups, noise of one, and that group; None where a given scale would clip the other's values."""
    a, b = (groups[state.scale_groups.find(p)] for p in (producer, consumer))
    levels = _levels(producer, state)
    value_range = a.value_range if a.fixed else b.value_range if b.fixed else hull([a.value_range, b.value_range])
    requantize = _sensitivity_at(consumer, state)  # with one scale this consumer does not round again
    shared = _ScaleGroup(value_range, max(a.sensitivity + b.sensitivity - requantize, 0.0), a.fixed or b.fixed)
    covered = width(hull([a.value_range, b.value_range])) <= width(value_range) * 1.01
    possible = (covered and not (a.fixed and b.fixed)) or _same_fixed_scale(a, b)
    return a.noise(levels) + b.noise(levels), shared.noise(levels), shared if possible else None


def _same_fixed_scale(a: _ScaleGroup, b: _ScaleGroup) -> bool:
    return a.fixed and b.fixed and a.value_range == b.value_range


def _requantize_pays(added_noise: float, bits: float, producer: Point, state: SolverState) -> bool:
    """By the exchange rate of noise and time; or because the consumers lose many bits and the outputs show it."""
    noise_price = state.noise_vs_latency / math.log(2) / (state.total_noise + NOISE_FLOOR)
    cheaper = noise_price * added_noise > _relative_time(producer, state)
    significant = bits > TOLERATED_BITS and added_noise > SIGNIFICANT_NOISE * state.total_noise
    return added_noise > 0 and (cheaper or significant)


def _requantize_reason(
    producer: Point, bits: float, apart: float, together: float, shared: _ScaleGroup | None, state: SolverState
) -> str:
    name = producer[0].name
    if shared is None:
        return f"requantized: the given qparams do not cover the range of {name}"
    before, after = (_decibel(state.total_noise, n - apart) for n in (apart, together))
    return (
        f"requantized (estimated time +{_relative_time(producer, state):.1%}): a shared scale would lose "
        f"{bits:.1f} bits of resolution for the other consumers of {name}, and {after - before:.1f} dB at the outputs"
    )


def _decibel(total: float, added: float) -> float:
    return 10 * math.log10(max(total + added, NOISE_EPSILON))


def _scale_groups(state: SolverState) -> Groups:
    groups = {state.scale_groups.find(g[0]): g for g in state.scale_groups.groups()}
    return {root: _scale_group(members, state) for root, members in groups.items()}


def _scale_group(members: list[Point], state: SolverState) -> _ScaleGroup:
    sensitivity = sum(rounding_sensitivity(m, state) for m in members)
    for m in members:
        if m in state.fixed_qparams:
            return _ScaleGroup(state.fixed_qparams[m][0].representable_range, sensitivity, True)
    return _ScaleGroup(with_zero(hull(state.value_range(m) for m in members)), sensitivity)


def rounding_sensitivity(point: Point, state: SolverState) -> float:
    """The sensitivity of the rounding at a point; zero where the value was rounded before in the same scale group."""
    node, operand = point
    if operand is None:
        shared = state.shared_scale_operands(node) if node.op == "call_function" else ()
        return 0.0 if shared else state.noise.sensitivity(node)
    producer = (value_at(point), None)
    return 0.0 if state.scale_groups.same(producer, point) else _sensitivity_at(point, state)


def _sensitivity_at(consumer: Point, state: SolverState) -> float:
    node, operand = consumer
    assert operand is not None
    if node.op == "output":
        return state.noise.sensitivity(value_at(consumer))
    return state.noise.sensitivity_at(node, operand)


def _lost_bits(producer: Point, consumer: Point, groups: Groups, state: SolverState) -> float:
    """Bits of resolution that the producer's group loses with a shared scale."""
    a, b = (groups[state.scale_groups.find(p)] for p in (producer, consumer))
    own = width(a.value_range)
    return math.log2(max(width(hull([a.value_range, b.value_range])) / own, 1.0)) if own > 0 else 0.0


def _levels(point: Point, state: SolverState) -> int:
    if point in state.fixed_qparams:
        return state.fixed_qparams[point][0].qmax - state.fixed_qparams[point][0].qmin
    form = state.format_of(point)
    return form.qmax - form.qmin


def _relative_time(producer: Point, state: SolverState) -> float:
    """The time of a requantize, as a share of the total."""
    cost, precision = state.target.cost, state.precisions.get(producer[0], "int8")
    time = cost.op + 2 * cost.byte * BYTES[precision] * elements(producer[0])
    return time / max(state.total_time, 1.0)


def _edges(state: SolverState) -> Iterator[tuple[Point, Point]]:
    """From each quantized value to each consumer that reads integers of the same type."""
    for node in state.precisions:
        if state.is_integer(node):
            for i in quantized_operands(node, state):
                yield from _edge((operands(node)[i], None), (node, i), state)
    for point in state.fixed_qparams:
        if point[0].op == "output":
            yield from _edge((value_at(point), None), point, state)


def _edge(producer: Point, consumer: Point, state: SolverState) -> Iterator[tuple[Point, Point]]:
    quantized = constant_of(producer[0]) is None and state.is_quantized(producer[0])
    if quantized and _dtype(producer, state) == _dtype(consumer, state):
        yield producer, consumer


def _dtype(point: Point, state: SolverState) -> str:
    return state.fixed_qparams[point][0].dtype if point in state.fixed_qparams else state.format_of(point).dtype
