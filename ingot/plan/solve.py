"""The solver: labels, classes, ranges, storages. Simple, deterministic, blind to argument order and node names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.graph import constant_of, is_float, source_of, value_name
from ingot.plan.classes import Classes
from ingot.plan.model import Decision, Plan, Slot, Storage
from ingot.plan.qparams import finest_for, hull, storage_for, storage_for_bias, storage_for_weight
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
    work = _Work(module, ranges, target, relate(module, target, ranges))
    for node in work.facts.integer:
        _force(node, work)
    _share(work)
    for members in work.classes.groups():
        _store(members, work)
    notes = (*ranges.notes, *_left_in_float(work))
    return Plan(target.name, fingerprint, tuple(_decisions(work)), rewrites, notes=notes)


def _left_in_float(work: _Work) -> Iterator[str]:
    """A cast in which weights stay float is a smaller gain than the user expects: say so."""
    weighted = [n for n in work.facts.effects if weight_axis(n) is not None and not n.meta.get("ingot_float")]
    left = [n for n in weighted if n not in work.facts.integer]
    if left:
        why = work.facts.floating[left[0]]
        yield f"{len(left)} of {len(weighted)} ops with weights stay float, the first is {left[0].name}: {why}"
    if not work.facts.integer:
        yield "nothing in this model was quantized"


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
    """Edge by edge, the cheapest first: does the reader take the producer's scale, or requantize?"""
    hulls = _Hulls(work)
    edges = [(hulls.lost(p, r), p, r) for p, r in _edges(work)]
    for _, producer, reader in sorted(edges, key=lambda e: e[0]):
        if work.classes.same(producer, reader):
            continue
        lost = hulls.lost(producer, reader)
        if lost <= NEGLIGIBLE_BITS or _nobody_gains(producer, reader, work):
            hulls.union(producer, reader)
        else:
            name = producer[0].name
            work.because[reader] = (f"requantized: sharing would cost {name} {lost:.1f} bits for its other readers",)


class _Hulls:
    """The range of each class as it grows, and the narrowest range that any part of it had alone."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        groups = {work.classes.find(g[0]): g for g in work.classes.groups()}
        self.hull = {root: _with_zero(hull(_range(m, work) for m in members)) for root, members in groups.items()}
        self.least = {root: high - low for root, (low, high) in self.hull.items()}

    def lost(self, a: Place, b: Place) -> float:
        """Bits that the narrowest part of either class loses if both share one scale."""
        x, y = self.work.classes.find(a), self.work.classes.find(b)
        low, high = hull([self.hull[x], self.hull[y]])
        least = min(self.least[x], self.least[y])
        return math.log2((high - low) / least) if least > 0 else 0.0

    def union(self, a: Place, b: Place) -> None:
        x, y = self.work.classes.find(a), self.work.classes.find(b)
        joined, least = hull([self.hull[x], self.hull[y]]), min(self.least[x], self.least[y])
        self.work.classes.union(a, b)
        root = self.work.classes.find(a)
        self.hull[root], self.least[root] = joined, least


def _with_zero(span: tuple[float, float]) -> tuple[float, float]:
    return min(span[0], 0.0), max(span[1], 0.0)


def _nobody_gains(producer: Place, reader: Place, work: _Work) -> bool:
    """A free reader takes what it is given; a bound one shares if no one else would see the finer scale."""
    return not work.facts.carried.get(reader[0]) or _only_reader(producer[0], reader, work)


def _edges(work: _Work) -> Iterator[tuple[Place, Place]]:
    for node in work.facts.integer:
        for i in _activations(node, work):
            producer = operands(node)[i]
            if producer in work.facts.integer:
                yield (producer, None), (node, i)


def _only_reader(producer: Node, reader: Place, work: _Work) -> bool:
    """Every reader of the value is in the reader's class."""
    places = [(u, i) for u in producer.users for i, n in enumerate(operands(u)) if n is producer]
    return all(u in work.facts.integer and work.classes.same((u, i), reader) for u, i in places)


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
    stats = work.ranges.values.get(value_name(value))
    effect = work.facts.effects.get(value)
    if stats is None and effect is not None and effect.carriers:
        carried = [_value_range(operands(value)[i], work) for i in effect.carriers]
        return hull([*carried, *((c, c) for c in effect.constants)])
    assert stats is not None  # relations leaves a value without a range in float
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
    x, bias = _input_storage(node, work), constant_of(operands(node)[2]) if len(operands(node)) > 2 else None
    storage = storage_for_weight(weight, work.target.weight, work.target.weight_axis(node), finest_for(bias, x))
    yield _decision((node, 1), storage, "weight: symmetric, from its own numbers", work)
    if bias is not None:
        yield _decision((node, 2), storage_for_bias(x, storage), "bias: int32 at input scale times weight scale", work)


def _input_storage(node: Node, work: _Work) -> Storage:
    """What the kernel reads: the op's own operand, or that of the pad that runs inside it."""
    own = work.storages.get((node, 0))
    return own if own is not None else work.storages[(operands(node)[0], 0)]


def _decision(place: Place, storage: Storage | None, rule: str, work: _Work) -> Decision:
    node, operand = place
    reads = operands(node)[operand].name if operand is not None else None
    because = work.because.get(place, ())
    return Decision(Slot(node.name, operand), storage, rule, because, reads, source_of(node), str(node.target))
