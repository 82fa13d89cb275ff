"""The decisions of a solved plan: for each quantization point the rule that decided, and how it came to its scale."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, is_float, output_nodes, source_of
from ingot.plan.plan_data import Decision, QParams, QuantizationPoint
from ingot.plan.qparams import bias_qparams, min_weight_scale, weight_qparams, with_multiplier_bits
from ingot.plan.solver_state import Point, SolverState, quantized_operands, value_at
from ingot.plan.value_ranges import ValueRange, hull

MAX_STEPS = 6  # of an explanation that are listed


def decisions(state: SolverState) -> Iterator[Decision]:
    """In graph order: one decision for each quantization point of an integer op, one for each float op."""
    reasons = {m: r for members in state.scale_groups.groups() for m, r in _scale_reasons(members, state).items()}
    for node in state.module.graph.nodes:
        if node.op == "placeholder" and is_float(node):
            yield _input(node, state)
        elif state.is_integer(node):
            yield from _integer_op(node, state, reasons)
        elif node in state.dynamic:
            yield from _dynamic_op(node, state)
        elif node in state.precisions:
            yield _decision((node, None), None, f"float: {state.reasons[node]}", state, ())
        elif node.op == "output":
            yield from _outputs(node, state, reasons)


ScaleReasons = dict[Point, tuple[str, ...]]


def _scale_reasons(members: list[Point], state: SolverState) -> ScaleReasons:
    """The values that set the range of a scale group, and for each member why it shares that range."""
    ranges = {m: state.value_range(m) for m in members}
    low, high = hull(ranges.values())
    setters = [m for m, r in ranges.items() if r[0] == low or r[1] == high]
    names = ", ".join(sorted({value_at(m).name for m in setters}))
    paths = state.scale_groups.paths_to(setters[0])
    text = f"value range {low:.5g} … {high:.5g}, set by {names}"
    return {m: (text, *_path_reasons(m, ranges[m], paths)) for m in members}


def _path_reasons(point: Point, own: ValueRange, paths: dict[Point, tuple[Point, str]]) -> Iterator[str]:
    steps = list(dict.fromkeys(_path(point, paths)))
    if steps:
        yield f"own value range {own[0]:.5g} … {own[1]:.5g}; shares the scale because:"
        yield from (f"  {step}" for step in steps[:MAX_STEPS])
        if len(steps) > MAX_STEPS:
            yield f"  … and {len(steps) - MAX_STEPS} more"


def _path(point: Point, paths: dict[Point, tuple[Point, str]]) -> Iterator[str]:
    while point in paths:
        point, why = paths[point]
        yield why


def _input(node: Node, state: SolverState) -> Decision:
    if (node, None) in state.fixed_qparams:
        rule = "graph input: qparams from the recipe"
        return _decision((node, None), state.qparams[node, None], rule, state, ())
    return _decision((node, None), None, "graph input: float, each consumer quantizes it", state, ())


def _outputs(node: Node, state: SolverState, reasons: ScaleReasons) -> Iterator[Decision]:
    for i in range(len(output_nodes(state.module))):
        if (node, i) in state.fixed_qparams:
            rule = "graph output: qparams from the recipe"
            yield _decision((node, i), state.qparams[node, i], rule, state, reasons[node, i])


def _integer_op(node: Node, state: SolverState, reasons: ScaleReasons) -> Iterator[Decision]:
    for i in quantized_operands(node, state):
        yield _decision((node, i), state.qparams[node, i], _operand_rule(node, i, state), state, reasons[node, i])
    yield from _weight_and_bias(node, state)
    precision = f"{state.precisions[node]}: {state.reasons[node]}"
    if not is_float(node):
        yield _decision((node, None), None, "integers: the result has no scale", state, (precision,))
    elif (node, None) in state.float_points:
        yield _decision((node, None), None, f"float: {state.float_points[node, None]}", state, (precision,))
    elif node in state.fused:
        rule = f"fused with {state.fused[node].name} into one kernel: not quantized between them"
        yield _decision((node, None), None, rule, state, (precision,))
    else:
        proof = (precision, *reasons[node, None])
        yield _decision((node, None), state.qparams[node, None], _result_rule(node, state), state, proof)


def _dynamic_op(node: Node, state: SolverState) -> Iterator[Decision]:
    """The weight has qparams; those of the input are chosen at run time."""
    weight = constant_of(operands(node)[1])
    assert weight is not None  # constraints allow it only with a constant weight
    qparams = weight_qparams(weight, state.target.numerics.weight, state.target.kernels.weight_axis(node))
    rule = f"dynamic: quantized to int8 at run time, each token with its own scale; {state.reasons[node]}"
    yield _decision((node, 0), None, rule, state, ())
    yield _decision((node, 1), qparams, "weight: symmetric, scale from its largest magnitude", state, ())
    yield _decision((node, None), None, "float: the result of an op that quantizes its input at run time", state, ())


def _result_rule(node: Node, state: SolverState) -> str:
    effect = state.constraints.effects[node]
    scale = "output scale = input scale" if state.shared_scale_operands(node) else "own output scale"
    return f"{scale}: {effect.kind.value} values ({effect.reason})"


def _operand_rule(node: Node, i: int, state: SolverState) -> str:
    producer = operands(node)[i]
    if not state.is_quantized(producer):
        return "quantized at this operand"
    same = state.qparams[node, i] == state.qparams.get((producer, None))
    return "same qparams as the producer" if same else "requantized at this operand"


def _weight_and_bias(node: Node, state: SolverState) -> Iterator[Decision]:
    if weight_axis(node) is None:
        return
    weight = constant_of(operands(node)[1])
    assert weight is not None  # constraints allow integers only with a constant weight
    x, bias = _input_qparams(node, state), constant_of(operands(node)[2]) if len(operands(node)) > 2 else None
    axis = state.target.kernels.weight_axis(node)
    plain = weight_qparams(weight, state.weight_format(node), axis, min_weight_scale(bias, x))
    qparams = _with_multiplier_bits(node, plain, x, state)
    yield _decision((node, 1), qparams, _weight_rule(node, state), state, ())
    if bias is not None:
        rule = "bias: int32, input scale times weight scale"
        yield _decision((node, 2), bias_qparams(x, qparams), rule, state, ())


def _weight_rule(node: Node, state: SolverState) -> str:
    if node not in state.weight_formats:
        return "weight: symmetric, scale from its largest magnitude"
    requested = node in state.user_constraints.weights
    why = "requested by the recipe" if requested else "it adds little noise per byte saved"
    return f"weight: symmetric, scale from its largest magnitude; int4: {why}"


def _with_multiplier_bits(node: Node, weight: QParams, x: QParams, state: SolverState) -> QParams:
    bits = state.target.numerics.multiplier_bits.get(state.precisions[node])
    out = state.qparams.get((state.fused.get(node, node), None))
    return weight if bits is None or out is None else with_multiplier_bits(weight, x, out, bits)


def _input_qparams(node: Node, state: SolverState) -> QParams:
    """What the kernel reads: the op's own operand, or that of a pad that is fused into the kernel."""
    own = state.qparams.get((node, 0))
    return own if own is not None else state.qparams[operands(node)[0], 0]


def _decision(
    point: Point, qparams: QParams | None, rule: str, state: SolverState, reasons: tuple[str, ...]
) -> Decision:
    node, operand = point
    return Decision(
        QuantizationPoint(node.name, operand),
        qparams,
        rule,
        because=(*reasons, *state.because.get(point, ())),
        reads=operands(node)[operand].name if operand is not None else None,
        source=source_of(node),
        op=str(node.target),
        fixed=point in state.fixed,
    )
