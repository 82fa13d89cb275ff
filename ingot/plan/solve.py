"""The solver: labels, classes, ranges, storages. Simple, deterministic, blind to argument order and node names."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from ingot.graph import constant_of, is_float, source_of
from ingot.plan.model import Decision, Plan, Slot, Storage
from ingot.plan.qparams import finest_for, hull, storage_for, storage_for_bias, storage_for_weight
from ingot.plan.relations import relate
from ingot.plan.sharing import share
from ingot.plan.work import Place, Work, activations, range_of
from ingot.ranges import Ranges
from ingot.semantics import operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Target


def solve(
    module: GraphModule, ranges: Ranges, target: Target, fingerprint: str, rewrites: tuple[str, ...] = ()
) -> Plan:
    """What every slot of `module` is stored as on `target`."""
    work = Work(module, ranges, target, relate(module, target, ranges))
    for node in work.facts.integer:
        _force(node, work)
    share(work)
    for members in work.classes.groups():
        _store(members, work)
    notes = (*ranges.notes, *_left_in_float(work))
    return Plan(target.name, fingerprint, tuple(_decisions(work)), rewrites, notes=notes)


def _left_in_float(work: Work) -> Iterator[str]:
    """A cast in which weights stay float is a smaller gain than the user expects: say so."""
    weighted = [n for n in work.facts.effects if weight_axis(n) is not None and not n.meta.get("ingot_float")]
    left = [n for n in weighted if n not in work.facts.integer]
    if left:
        why = work.facts.floating[left[0]]
        yield f"{len(left)} of {len(weighted)} ops with weights stay float, the first is {left[0].name}: {why}"
    if not work.facts.integer:
        yield "nothing in this model was quantized"


def _force(node: Node, work: Work) -> None:
    """Create the slots of an integer op; those whose numbers go through untouched are one class."""
    places = [(node, i) for i in activations(node, work)]
    out = [(node, None)] if node not in work.facts.fused else []
    work.classes.add([*places, *out])
    for i in work.facts.carried.get(node, ()):
        work.classes.union((node, i), (node, None))


def _store(members: list[Place], work: Work) -> None:
    ranges = {m: range_of(m, work) for m in members}
    low, high = hull(ranges.values())
    storage = storage_for(low, high, work.target.formats["int8"])
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


def _decisions(work: Work) -> Iterator[Decision]:
    for node in work.module.graph.nodes:
        if node.op == "placeholder" and is_float(node):
            yield _decision((node, None), None, "graph input: stays float, each reader quantizes it", work)
        elif node in work.facts.integer:
            yield from _integer_decisions(node, work)
        elif node in work.facts.floating:
            yield _decision((node, None), None, f"float: {work.facts.floating[node]}", work)


def _integer_decisions(node: Node, work: Work) -> Iterator[Decision]:
    for i in activations(node, work):
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


def _operand_rule(node: Node, i: int, work: Work) -> str:
    producer = operands(node)[i]
    if producer not in work.facts.integer:
        return "quantized where it is read"
    same = work.storages[(node, i)] == work.storages.get((producer, None))
    return "read as stored" if same else "requantized where it is read"


def _weight_decisions(node: Node, work: Work) -> Iterator[Decision]:
    if weight_axis(node) is None:
        return
    weight = constant_of(operands(node)[1])
    assert weight is not None  # relations labels an op integer only with a static weight
    x, bias = _input_storage(node, work), constant_of(operands(node)[2]) if len(operands(node)) > 2 else None
    storage = storage_for_weight(weight, work.target.weight, work.target.weight_axis(node), finest_for(bias, x))
    yield _decision((node, 1), storage, "weight: symmetric, from its own numbers", work)
    if bias is not None:
        yield _decision((node, 2), storage_for_bias(x, storage), "bias: int32 at input scale times weight scale", work)


def _input_storage(node: Node, work: Work) -> Storage:
    """What the kernel reads: the op's own operand, or that of the pad that runs inside it."""
    own = work.storages.get((node, 0))
    return own if own is not None else work.storages[(operands(node)[0], 0)]


def _decision(place: Place, storage: Storage | None, rule: str, work: Work) -> Decision:
    node, operand = place
    reads = operands(node)[operand].name if operand is not None else None
    because = work.because.get(place, ())
    return Decision(Slot(node.name, operand), storage, rule, because, reads, source_of(node), str(node.target))
