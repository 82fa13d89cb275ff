"""A plan that somebody edited must still be one that the program and the target can carry out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch.fx import GraphModule, Node

from ingot.errors import PlanError, nearest
from ingot.graph import constant_of, source_of
from ingot.plan.model import Decision, Plan, Storage
from ingot.semantics import effect_of, operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Target


def validate(plan: Plan, module: GraphModule, target: Target) -> None:
    """Raise at the first decision that cannot be carried out."""
    nodes = {n.name: n for n in module.graph.nodes}
    for d in plan:
        if d.slot.node not in nodes:
            raise PlanError(
                f"the plan stores '{d.slot.node}', which the program does not have", hint=nearest(d.slot.node, nodes)
            )
        node = nodes[d.slot.node]
        for problem in (*_place(d, node), *(_numbers(d.storage) if d.storage else ()), *_type(d, node, target)):
            raise PlanError(f"{d.slot} cannot be stored as {d.storage}", where=source_of(node), why=problem)
    for node in nodes.values():
        _carried(node, plan, target)


def _place(d: Decision, node: Node) -> Iterator[str]:
    count = len(operands(node))
    if d.slot.operand is not None and not 0 <= d.slot.operand < count:
        yield f"{node.name} reads {count} values"


def _numbers(s: Storage) -> Iterator[str]:
    scales = s.scale if isinstance(s.scale, tuple) else (s.scale,)
    zeros = s.zero_point if isinstance(s.zero_point, tuple) else (s.zero_point,)
    if not all(scale > 0 and math.isfinite(scale) for scale in scales):
        yield "a scale is a positive number"
    if not all(s.qmin <= zero <= s.qmax for zero in zeros):
        yield f"a zero point lies in {s.qmin} … {s.qmax}"


def _type(d: Decision, node: Node, target: Target) -> Iterator[str]:
    """What the target stores activations, weights and biases as; the boundary is free."""
    if d.storage is None or node.op != "call_function":
        return
    if weight_axis(node) is not None and d.slot.operand in (1, 2):
        known = {target.weight.dtype} if d.slot.operand == 1 else {"int32"}
    else:
        known = {f.dtype for f in target.formats.values()}
    if d.storage.dtype not in known:
        yield f"{target.name} stores {', '.join(sorted(known))} there"


def _carried(node: Node, plan: Plan, target: Target) -> None:
    """An op that hands numbers on untouched has them stored alike before and after."""
    stored = plan.storage(node.name)
    if node.op != "call_function" or stored is None or weight_axis(node) is not None or target.rescales(node):
        return
    effect = effect_of(node, constant_of)
    for i in effect.carriers:
        read = plan.storage(node.name, i)
        if read is not None and read != stored:
            raise PlanError(
                f"{node.name} is stored as {stored} and reads its operand {i} as {read}",
                where=source_of(node),
                why=f"it {effect.kind.value} numbers: {effect.reason}",
                hint="store both alike; a reader may requantize",
            )
