"""Checks that an edited plan still fits the program and the target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import effect_of, operands
from ingot.capture.op_semantics.weighted_ops import is_embedding, weight_axis
from ingot.config.tensor_specs import LIMITS
from ingot.core.fx import constant_of, source_of
from ingot.errors import PlanError, nearest
from ingot.plan.plan_data import Decision, Plan, QParams
from ingot.plan.qparams import INT32_RANGE, bias_qparams
from ingot.plan.rounded_weights import rounded_weight
from ingot.targets.base import DYNAMIC, Target


def validate(plan: Plan, module: GraphModule, target: Target) -> None:
    """Raise at the first decision that cannot be lowered."""
    nodes = {n.name: n for n in module.graph.nodes}
    for d in plan:
        if d.point.node not in nodes:
            what = f"the plan has qparams for '{d.point.node}', which the program does not have"
            raise PlanError(what, hint=nearest(d.point.node, nodes))
        node = nodes[d.point.node]
        invalid = _invalid_qparams(d.qparams) if d.qparams else ()
        for problem in (*_invalid_point(d, node), *invalid, *_invalid_dtype(d, node, target)):
            raise PlanError(f"{d.point} cannot be quantized as {d.qparams}", where=source_of(node), why=problem)
    for node in nodes.values():
        _check_shared_scale(node, plan, target)
    for name in plan.dynamic:
        if name not in nodes or DYNAMIC not in target.kernels.ability(nodes[name]).runs:
            what = f"'{name}' cannot quantize its input at run time on {target.name}"
            raise PlanError(what, why="no such op, or no such kernel", hint=nearest(name, nodes))
    for name, correction in plan.bias_corrections.items():
        _check_bias_correction(name, correction, nodes)
    for name, codes in plan.rounded_weights.items():
        _check_rounded_weight(name, codes, nodes, plan)


def _check_rounded_weight(name: str, codes: str, nodes: dict[str, Node], plan: Plan) -> None:
    weight = constant_of(operands(nodes[name])[1]) if name in nodes and weight_axis(nodes[name]) is not None else None
    qparams = plan.qparams(name, 1)
    if weight is None or qparams is None or len(nodes[name].all_input_nodes[1].users) > 1:
        why = "no such op with a quantized weight of its own"
        raise PlanError(f"the plan has a rounded weight for '{name}'", why=why)
    rounded_weight(codes, weight, qparams, name)


def _check_bias_correction(name: str, correction: tuple[float, ...], nodes: dict[str, Node]) -> None:
    read = operands(nodes[name]) if name in nodes else ()
    bias = constant_of(read[2]) if len(read) > 2 and weight_axis(nodes[name]) is not None else None
    if bias is None or len(correction) != bias.numel() or not all(map(math.isfinite, correction)):
        why = "no such op with a bias" if bias is None else f"it needs {bias.numel()} finite numbers"
        raise PlanError(f"the plan has a bias correction of {len(correction)} channels for '{name}'", why=why)


DTYPE_LIMITS = {**LIMITS, "int32": INT32_RANGE}


def _invalid_point(d: Decision, node: Node) -> Iterator[str]:
    count = len(operands(node))
    if d.point.operand is not None and not 0 <= d.point.operand < count:
        yield f"{node.name} has {count} operands"
    elif d.qparams is not None and d.qparams.axis is not None:
        yield from _invalid_channels(d.qparams, node, d.point.operand)


def _invalid_channels(qparams: QParams, node: Node, operand: int | None) -> Iterator[str]:
    """Weights and biases are quantized per channel, embedding tables per row, with one scale for each."""
    is_weight = bool(operand) and weight_axis(node) is not None
    constant = constant_of(operands(node)[operand or 0]) if is_weight or (operand == 0 and is_embedding(node)) else None
    sizes = constant.shape if constant is not None else ()
    axis, count = qparams.axis or 0, len(qparams.scale) if isinstance(qparams.scale, tuple) else 1
    if not 0 <= axis < len(sizes) or sizes[axis] != count:
        yield f"there are no {count} channels along axis {qparams.axis}"


def _invalid_qparams(s: QParams) -> Iterator[str]:
    scales = s.scale if isinstance(s.scale, tuple) else (s.scale,)
    zeros = s.zero_point if isinstance(s.zero_point, tuple) else (s.zero_point,)
    low, high = DTYPE_LIMITS.get(s.dtype, (1, 0))
    if not (isinstance(s.qmin, int) and isinstance(s.qmax, int) and low <= s.qmin < s.qmax <= high):
        yield f"qmin … qmax {s.qmin} … {s.qmax} is not a range of {s.dtype}"
    elif not all(scale > 0 and math.isfinite(scale) for scale in scales):
        yield "a scale must be positive and finite"
    elif not all(isinstance(zero, int) and s.qmin <= zero <= s.qmax for zero in zeros):
        yield f"a zero point must be an integer in {s.qmin} … {s.qmax}"
    elif (s.axis is None) != isinstance(s.scale, float) or len(scales) != len(zeros):
        yield "scale and zero point must be numbers (per tensor) or one of each per channel of an axis"


def _invalid_dtype(d: Decision, node: Node, target: Target) -> Iterator[str]:
    """The types of the target for activations, weights and biases; graph inputs and outputs may have any."""
    if d.qparams is None or node.op != "call_function":
        return
    if weight_axis(node) is not None and d.point.operand in (1, 2):
        allowed = {target.numerics.weight.dtype} if d.point.operand == 1 else {"int32"}
    else:
        allowed = {f.dtype for f in target.numerics.formats.values()}
    if d.qparams.dtype not in allowed:
        yield f"{target.name} needs {', '.join(sorted(allowed))} there"


def with_bias_qparams(plan: Plan, module: GraphModule) -> Plan:
    """Bias scales follow from input and weight scales: after an edit of one of these they are derived anew."""
    nodes = {n.name: n for n in module.graph.nodes}
    return replace(plan, decisions=tuple(_derive(d, nodes, plan) for d in plan))


def _derive(d: Decision, nodes: dict[str, Node], plan: Plan) -> Decision:
    if d.qparams is None or d.qparams.dtype != "int32":
        return d
    node = nodes[d.point.node]
    x = plan.qparams(node.name, 0) or plan.qparams(operands(node)[0].name, 0)  # of a pad that is fused into the kernel
    weight = plan.qparams(node.name, 1)
    return replace(d, qparams=bias_qparams(x, weight)) if x and weight else d


def _check_shared_scale(node: Node, plan: Plan, target: Target) -> None:
    """An op that passes values on unchanged has the same qparams before and after."""
    out = plan.qparams(node.name)
    if node.op != "call_function" or out is None or weight_axis(node) is not None or target.kernels.requantizes(node):
        return
    effect = effect_of(node, constant_of)
    for i in effect.carriers:
        read = plan.qparams(node.name, i)
        if read is not None and read != out:
            raise PlanError(
                f"{node.name} has the output qparams {out}, but its operand {i} has {read}",
                where=source_of(node),
                why=f"it {effect.kind.value} values, so they share one scale: {effect.reason}",
                hint="give both the same qparams; a consumer may requantize",
            )
