"""The decisions of a solved plan, each with the rule that made it and the way from the rule to the slot."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, is_float, output_nodes, source_of
from ingot.plan.model import Decision, QParams, QuantizationPoint
from ingot.plan.qparams import bias_qparams, finest_for, weight_qparams, with_factors
from ingot.plan.state import Place, Work, activations, value_in

LONG = 6  # steps of a way that are told


def decisions(work: Work) -> Iterator[Decision]:
    proofs = {m: p for members in work.scale_groups.groups() for m, p in _proofs(members, work).items()}
    for node in work.module.graph.nodes:
        if node.op == "placeholder" and is_float(node):
            yield _input(node, work)
        elif work.is_integer(node):
            yield from _integer(node, work, proofs)
        elif node in work.precisions:
            yield _decision((node, None), None, f"float: {work.reasons[node]}", work, ())
        elif node.op == "output":
            yield from _outputs(node, work, proofs)


Proofs = dict[Place, tuple[str, ...]]


def _proofs(members: list[Place], work: Work) -> Proofs:
    """Which values set the range (named by value, not by order), and how each slot comes to share it."""
    spans = {m: work.span(m) for m in members}
    low, high = min(s[0] for s in spans.values()), max(s[1] for s in spans.values())
    setters = [m for m, s in spans.items() if s[0] == low or s[1] == high]
    names = ", ".join(sorted({value_in(m).name for m in setters}))
    ways = work.scale_groups.ways(setters[0])
    return {m: tuple(_proof(m, spans[m], f"{low:.5g} … {high:.5g} set by {names}", ways)) for m in members}


def _proof(place: Place, own: tuple[float, float], text: str, ways: dict[Place, tuple[Place, str]]) -> Iterator[str]:
    yield f"measured {text}"
    path = list(dict.fromkeys(_path(place, ways)))
    if path:
        yield f"its own range is {own[0]:.5g} … {own[1]:.5g}; one scale because:"
        yield from (f"  {step}" for step in path[:LONG])
        if len(path) > LONG:
            yield f"  … and {len(path) - LONG} steps more"


def _path(place: Place, ways: dict[Place, tuple[Place, str]]) -> Iterator[str]:
    while place in ways:
        place, why = ways[place]
        yield why


def _input(node: Node, work: Work) -> Decision:
    if (node, None) in work.fixed_qparams:
        return _decision((node, None), work.qparams[node, None], "graph input, stored as the recipe says", work, ())
    return _decision((node, None), None, "graph input: stays float, each reader quantizes it", work, ())


def _outputs(node: Node, work: Work, proofs: Proofs) -> Iterator[Decision]:
    for i in range(len(output_nodes(work.module))):
        if (node, i) in work.fixed_qparams:
            rule = "graph output, stored as the recipe says"
            yield _decision((node, i), work.qparams[node, i], rule, work, proofs[node, i])


def _integer(node: Node, work: Work, proofs: Proofs) -> Iterator[Decision]:
    for i in activations(node, work):
        yield _decision((node, i), work.qparams[node, i], _operand_rule(node, i, work), work, proofs[node, i])
    yield from _weights(node, work)
    if (node, None) in work.float_points:
        rule = f"stays float: {work.float_points[node, None]}"
        yield _decision((node, None), None, rule, work, (_precision(node, work),))
    elif node in work.fused:
        rule = f"runs as one kernel with {work.fused[node].name}: nothing is stored between"
        yield _decision((node, None), None, rule, work, (_precision(node, work),))
    else:
        effect = work.facts.effects[node]
        rule = f"{effect.kind.value} numbers: {effect.reason}"
        proof = (_precision(node, work), *proofs[node, None])
        yield _decision((node, None), work.qparams[node, None], rule, work, proof)


def _precision(node: Node, work: Work) -> str:
    return f"{work.precisions[node]}: {work.reasons[node]}"


def _operand_rule(node: Node, i: int, work: Work) -> str:
    producer = operands(node)[i]
    if not work.is_stored(producer):
        return "quantized where it is read"
    same = work.qparams[node, i] == work.qparams.get((producer, None))
    return "read as stored" if same else "requantized where it is read"


def _weights(node: Node, work: Work) -> Iterator[Decision]:
    if weight_axis(node) is None:
        return
    weight = constant_of(operands(node)[1])
    assert weight is not None  # relations offers integers only with a static weight
    x, bias = _input_storage(node, work), constant_of(operands(node)[2]) if len(operands(node)) > 2 else None
    form = work.weight_form(node)
    plain = weight_qparams(weight, form, work.target.kernels.weight_axis(node), finest_for(bias, x))
    storage = _with_factors(node, plain, x, work)
    asked = "as the recipe asks" if node in work.user_constraints.weights else "for it adds little noise for its bytes"
    rule = "weight: symmetric, from its own numbers" + (f"; narrow {asked}" if node in work.weights else "")
    yield _decision((node, 1), storage, rule, work, ())
    if bias is not None:
        rule = "bias: int32 at input scale times weight scale"
        yield _decision((node, 2), bias_qparams(x, storage), rule, work, ())


def _with_factors(node: Node, plain: QParams, x: QParams, work: Work) -> QParams:
    bits, out = (
        work.target.numerics.multiplier_bits.get(work.precisions[node]),
        work.qparams.get((work.fused.get(node, node), None)),
    )
    return plain if bits is None or out is None else with_factors(plain, x, out, bits)


def _input_storage(node: Node, work: Work) -> QParams:
    """What the kernel reads: the op's own operand, or that of the pad that runs inside it."""
    own = work.qparams.get((node, 0))
    return own if own is not None else work.qparams[operands(node)[0], 0]


def _decision(place: Place, storage: QParams | None, rule: str, work: Work, proof: tuple[str, ...]) -> Decision:
    node, operand = place
    reads = operands(node)[operand].name if operand is not None else None
    because = (*proof, *work.because.get(place, ()))
    fixed = place in work.fixed
    return Decision(
        QuantizationPoint(node.name, operand), storage, rule, because, reads, source_of(node), str(node.target), fixed
    )
