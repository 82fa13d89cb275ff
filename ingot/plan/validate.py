"""A plan that somebody edited must still be one that the program and the target can carry out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.specs import LIMITS
from ingot.core.fx import constant_of, source_of
from ingot.errors import PlanError, nearest
from ingot.plan.model import Decision, Plan, QParams
from ingot.plan.qparams import bias_qparams
from ingot.targets.base import Target


def validate(plan: Plan, module: GraphModule, target: Target) -> None:
    """Raise at the first decision that cannot be carried out."""
    nodes = {n.name: n for n in module.graph.nodes}
    for d in plan:
        if d.point.node not in nodes:
            raise PlanError(
                f"the plan stores '{d.point.node}', which the program does not have", hint=nearest(d.point.node, nodes)
            )
        node = nodes[d.point.node]
        for problem in (*_place(d, node), *(_numbers(d.qparams) if d.qparams else ()), *_type(d, node, target)):
            raise PlanError(f"{d.point} cannot be stored as {d.qparams}", where=source_of(node), why=problem)
    for node in nodes.values():
        _carried(node, plan, target)
    for name, shift in plan.bias_corrections.items():
        _shifted(name, shift, nodes)


def _shifted(name: str, shift: tuple[float, ...], nodes: dict[str, Node]) -> None:
    read = operands(nodes[name]) if name in nodes else ()
    bias = constant_of(read[2]) if len(read) > 2 and weight_axis(nodes[name]) is not None else None
    if bias is None or len(shift) != bias.numel() or not all(map(math.isfinite, shift)):
        why = "there is no such op with a bias" if bias is None else f"it wants {bias.numel()} finite numbers"
        raise PlanError(f"the plan moves the bias of '{name}' by {len(shift)} numbers", why=why)


# What a number of that type can be.
HOLDS = {**LIMITS, "int32": (-(2**31), 2**31 - 1)}


def _place(d: Decision, node: Node) -> Iterator[str]:
    count = len(operands(node))
    if d.point.operand is not None and not 0 <= d.point.operand < count:
        yield f"{node.name} reads {count} values"
    elif d.qparams is not None and d.qparams.axis is not None:
        yield from _channels(d.qparams, node, d.point.operand)


def _channels(storage: QParams, node: Node, operand: int | None) -> Iterator[str]:
    """Only a weight or a bias has channels, and a scale for each of them."""
    constant = constant_of(operands(node)[operand]) if operand else None
    sizes = constant.shape if constant is not None and weight_axis(node) is not None else ()
    if not 0 <= (storage.axis or 0) < len(sizes) or sizes[storage.axis or 0] != len(storage.scale):  # type: ignore[arg-type]
        yield f"there are no {len(storage.scale)} channels along axis {storage.axis}"  # type: ignore[arg-type]


def _numbers(s: QParams) -> Iterator[str]:
    scales = s.scale if isinstance(s.scale, tuple) else (s.scale,)
    zeros = s.zero_point if isinstance(s.zero_point, tuple) else (s.zero_point,)
    low, high = HOLDS.get(s.dtype, (1, 0))
    if not (isinstance(s.qmin, int) and isinstance(s.qmax, int) and low <= s.qmin < s.qmax <= high):
        yield f"{s.dtype} does not hold {s.qmin} … {s.qmax}"
    elif not all(scale > 0 and math.isfinite(scale) for scale in scales):
        yield "a scale is a positive number"
    elif not all(isinstance(zero, int) and s.qmin <= zero <= s.qmax for zero in zeros):
        yield f"a zero point is a whole number in {s.qmin} … {s.qmax}"
    elif (s.axis is None) != isinstance(s.scale, float) or len(scales) != len(zeros):
        yield "one scale and zero point for all, or one of each for every channel of an axis"


def _type(d: Decision, node: Node, target: Target) -> Iterator[str]:
    """What the target stores activations, weights and biases as; the boundary is free."""
    if d.qparams is None or node.op != "call_function":
        return
    if weight_axis(node) is not None and d.point.operand in (1, 2):
        known = {target.numerics.weight.dtype} if d.point.operand == 1 else {"int32"}
    else:
        known = {f.dtype for f in target.numerics.formats.values()}
    if d.qparams.dtype not in known:
        yield f"{target.name} stores {', '.join(sorted(known))} there"


def with_biases(plan: Plan, module: GraphModule) -> Plan:
    """Biases follow from what they are added to: an edit of an input's or a weight's scale moves them too."""
    nodes = {n.name: n for n in module.graph.nodes}
    return replace(plan, decisions=tuple(_derived(d, nodes, plan) for d in plan))


def _derived(d: Decision, nodes: dict[str, Node], plan: Plan) -> Decision:
    if d.qparams is None or d.qparams.dtype != "int32":
        return d
    node = nodes[d.point.node]
    x = plan.qparams(node.name, 0) or plan.qparams(operands(node)[0].name, 0)  # a pad may run inside the kernel
    weight = plan.qparams(node.name, 1)
    return replace(d, qparams=bias_qparams(x, weight)) if x and weight else d


def _carried(node: Node, plan: Plan, target: Target) -> None:
    """An op that hands numbers on untouched has them stored alike before and after."""
    stored = plan.qparams(node.name)
    if (
        node.op != "call_function"
        or stored is None
        or weight_axis(node) is not None
        or target.kernels.requantizes(node)
    ):
        return
    effect = effect_of(node, constant_of)
    for i in effect.carriers:
        read = plan.qparams(node.name, i)
        if read is not None and read != stored:
            raise PlanError(
                f"{node.name} is stored as {stored} and reads its operand {i} as {read}",
                where=source_of(node),
                why=f"it {effect.kind.value} numbers: {effect.reason}",
                hint="store both alike; a reader may requantize",
            )
