"""The solver: labels, classes, ranges, storages. Simple, deterministic, blind to argument order and node names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.errors import PlanError
from ingot.graph import constant_of, is_float, source_of
from ingot.plan.classes import Classes
from ingot.plan.model import Decision, Plan, Slot, Storage
from ingot.plan.qparams import hull, storage_for, storage_for_bias, storage_for_weight
from ingot.plan.relations import Relations, relate
from ingot.ranges import Ranges
from ingot.semantics import operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Target

# Sharing a scale with a wider class costs the narrower value bits; below this nobody can tell.
NEGLIGIBLE_BITS = 0.25

Place = tuple[Node, int | None]  # a slot with its node at hand


@dataclass
class _Work:
    module: GraphModule
    ranges: Ranges
    target: Target
    facts: Relations
    classes: Classes[Place] = field(default_factory=Classes)
    storages: dict[Place, Storage] = field(default_factory=dict)
    because: dict[Place, tuple[str, ...]] = field(default_factory=dict)


def solve(
    module: GraphModule, ranges: Ranges, target: Target, fingerprint: str, rewrites: tuple[str, ...] = ()
) -> Plan:
    """What every slot of `module` is stored as on `target`."""
    work = _Work(module, ranges, target, relate(module, target))
    for node in work.facts.integer:
        _force(node, work)
    _share(work)
    for members in work.classes.groups():
        _store(members, work)
    return Plan(target.name, fingerprint, tuple(_decisions(work)), rewrites, notes=ranges.notes)


def _force(node: Node, work: _Work) -> None:
    """Create the slots of an integer op; those whose numbers go through untouched are one class."""
    places = [(node, i) for i in _activations(node, work)]
    out = [(node, None)] if node not in work.facts.fused else []
    work.classes.add([*places, *out])
    for i in work.facts.carried.get(node, ()):
        work.classes.union((node, i), (node, None))


def _activations(node: Node, work: _Work) -> list[int]:
    """The operands of an integer op that carry activations; none where a fused producer stands before it."""
    if node in work.facts.fused.values():
        return []
    weighted = weight_axis(node) is not None
    return [i for i, n in enumerate(operands(node)) if is_float(n) and not (weighted and i > 0)]


def _share(work: _Work) -> None:
    """Edge by edge: does the reader take the producer's scale, or requantize? All decided on the forced classes."""
    edges = [(p, r) for p, r in _edges(work) if not work.classes.same(p, r)]
    spans = {work.classes.find(members[0]): _span(members, work) for members in work.classes.groups()}
    merged = [(p, r) for p, r in edges if _worth_sharing(p, r, spans, work)]
    for producer, reader in merged:
        work.classes.union(producer, reader)


def _edges(work: _Work) -> Iterator[tuple[Place, Place]]:
    for node in work.facts.integer:
        for i in _activations(node, work):
            producer = operands(node)[i]
            if producer in work.facts.integer:
                yield (producer, None), (node, i)


def _worth_sharing(producer: Place, reader: Place, spans: dict[Place, float], work: _Work) -> bool:
    """A free reader takes what it is given. A bound one shares if no one else would see the finer scale."""
    if not work.facts.carried.get(reader[0]) or _only_reader(producer[0], reader, work):
        return True
    own, other = spans[work.classes.find(producer)], spans[work.classes.find(reader)]
    lost = math.log2(max(own, other) / own) if own > 0 else 0.0
    if lost > NEGLIGIBLE_BITS:
        work.because[reader] = (
            f"requantized: sharing would cost {producer[0].name} {lost:.1f} bits for its other readers",
        )
    return lost <= NEGLIGIBLE_BITS


def _only_reader(producer: Node, reader: Place, work: _Work) -> bool:
    """Every reader of the value is in the reader's class."""
    places = [(u, i) for u in producer.users for i, n in enumerate(operands(u)) if n is producer]
    return all(u in work.facts.integer and work.classes.same((u, i), reader) for u, i in places)


def _span(members: list[Place], work: _Work) -> float:
    low, high = hull(_range(m, work) for m in members)
    return max(high, 0.0) - min(low, 0.0)


def _range(place: Place, work: _Work) -> tuple[float, float]:
    """The measured range of the value in a slot; a constant's own numbers."""
    node, operand = place
    value = node if operand is None else operands(node)[operand]
    return _value_range(value, work)


def _value_range(value: Node, work: _Work) -> tuple[float, float]:
    """As recorded; a constant's own numbers; for a value that a rewrite made, the hull of what it carries."""
    constant = constant_of(value)
    if constant is not None:
        return float(constant.detach().min()), float(constant.detach().max())
    stats = work.ranges.values.get(value.meta.get("ingot_value", value.name))
    effect = work.facts.effects.get(value)
    if stats is None and effect is not None and effect.carriers:
        carried = [_value_range(operands(value)[i], work) for i in effect.carriers]
        return hull([*carried, *((c, c) for c in effect.constants)])
    if stats is None or not math.isfinite(stats.min):
        raise PlanError(
            f"no range was recorded for '{value.name}'",
            where=source_of(value),
            why="the value was never finite" if stats else "the record is of another program",
            hint="record this program again with batches that reach the value",
        )
    return stats.min, stats.max


def _store(members: list[Place], work: _Work) -> None:
    ranges = {m: _range(m, work) for m in members}
    low, high = hull(ranges.values())
    storage = storage_for(low, high, work.target.activation)
    for m in members:
        work.storages[m] = storage
        work.because[m] = work.because.get(m, ()) + _class_reason(m, ranges, low, high)


def _class_reason(place: Place, ranges: dict[Place, tuple[float, float]], low: float, high: float) -> tuple[str, ...]:
    """Which values set the range: named by value, not by argument order."""
    setters = sorted({_value(m).name for m, (lo, hi) in ranges.items() if lo == low or hi == high})
    own = ranges[place]
    text = f"range {low:.5g} … {high:.5g} set by {', '.join(setters)}"
    others = sorted({_value(m).name for m in ranges} - {_value(place).name})
    shared = (
        (f"its own range is {own[0]:.5g} … {own[1]:.5g}; one scale with {', '.join(others[:6])}",) if others else ()
    )
    return (text, *shared)


def _value(place: Place) -> Node:
    return place[0] if place[1] is None else operands(place[0])[place[1]]


def _decisions(work: _Work) -> Iterator[Decision]:
    for node in work.module.graph.nodes:
        if node.op == "placeholder" and is_float(node):
            yield _decision((node, None), None, "graph input: stays float, each reader quantizes it", work)
        elif node in work.facts.integer:
            yield from _integer_decisions(node, work)
        elif node in work.facts.floating:
            yield _decision((node, None), None, f"float: {work.facts.floating[node]}", work)


def _integer_decisions(node: Node, work: _Work) -> Iterator[Decision]:
    for i in _activations(node, work):
        yield _decision((node, i), work.storages[(node, i)], _operand_rule(node, i, work), work)
    yield from _weight_decisions(node, work)
    if node in work.facts.fused:
        activation = work.facts.fused[node].name
        yield _decision((node, None), None, f"runs as one kernel with {activation}: nothing is stored between", work)
    else:
        effect = work.facts.effects[node]
        yield _decision(
            (node, None), work.storages[(node, None)], f"{effect.kind.value} numbers: {effect.reason}", work
        )


def _operand_rule(node: Node, i: int, work: _Work) -> str:
    producer = operands(node)[i]
    if producer not in work.facts.integer:
        return "quantized where it is read"
    same = work.storages[(node, i)] == work.storages.get((producer, None))
    return "read as stored" if same else "requantized where it is read"


def _weight_decisions(node: Node, work: _Work) -> Iterator[Decision]:
    if weight_axis(node) is None:
        return
    weight = constant_of(operands(node)[1])
    assert weight is not None  # relations labels an op integer only with a static weight
    storage = storage_for_weight(weight, work.target.weight, work.target.weight_axis(node))
    yield _decision((node, 1), storage, "weight: symmetric, from its own numbers", work)
    if len(operands(node)) > 2:
        bias = storage_for_bias(_input_storage(node, work), storage)
        yield _decision((node, 2), bias, "bias: int32 at input scale times weight scale", work)


def _input_storage(node: Node, work: _Work) -> Storage:
    """What the kernel reads: the op's own operand, or that of the pad that runs inside it."""
    own = work.storages.get((node, 0))
    return own if own is not None else work.storages[(operands(node)[0], 0)]


def _decision(place: Place, storage: Storage | None, rule: str, work: _Work) -> Decision:
    node, operand = place
    reads = operands(node)[operand].name if operand is not None else None
    because = work.because.get(place, ())
    return Decision(Slot(node.name, operand), storage, rule, because, reads, source_of(node), str(node.target))
