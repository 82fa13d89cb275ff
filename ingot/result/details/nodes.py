"""The graph of a program: each value with its delegate, its qparams and the reason for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch.fx import Node

from ingot.calibrate.histogram import Stats
from ingot.capture.op_semantics import operands
from ingot.core.artefact import TensorInfo
from ingot.core.fx import module_path, source_of, value_name
from ingot.lower.partition_report import tensor_info
from ingot.plan.plan_data import Plan, QParams
from ingot.result.details.calibration import distribution_of
from ingot.result.details.records import GraphNode, OperandUse

if TYPE_CHECKING:
    from ingot.result.casting import Casting


def nodes_of(casting: Casting, stats: Mapping[str, Stats], errors: Mapping[str, float]) -> tuple[GraphNode, ...]:
    """In graph order. Constants are listed with their readers, not as nodes."""
    graph, places = casting.needed_evidence.program.module.graph, placement_of(casting)
    shown = [n for n in graph.nodes if n.op != "get_attr"]
    return tuple(_node(n, casting.plan, places, stats, errors) for n in shown)


def placement_of(casting: Casting) -> dict[str, int]:
    """For each value the number of its delegate, 0 for the host."""
    inside = {v: i for i, d in enumerate(casting.delegates, 1) for v in d.values}
    return {**inside, **dict.fromkeys(casting.hosted.values(), 0)}


def _node(
    node: Node, plan: Plan, places: Mapping[str, int], stats: Mapping[str, Stats], errors: Mapping[str, float]
) -> GraphNode:
    info, qparams, recorded = tensor_info(node), plan.qparams(node.name), stats.get(value_name(node))
    inside = qparams or _operand_qparams(node, plan)
    return GraphNode(
        name=node.name,
        op=_op(node),
        source=source_of(node),
        module=module_path(node),
        shape=info.shape,
        dtype=info.dtype,
        place=places.get(node.name),
        precision=info.dtype if inside is None else inside.dtype,
        stored=_stored(plan, node.name, info),
        reads=tuple(_reads(node, plan)),
        constants=tuple(str(n.target) for n in operands(node) if n.op == "get_attr"),
        why=_why(plan, node.name),
        spread=None if recorded is None else distribution_of(recorded, qparams),
        sqnr_db=errors.get(node.name),
    )


def _op(node: Node) -> str:
    if node.op != "call_function":
        return "input" if node.op == "placeholder" else node.op
    return str(getattr(node.target, "__name__", node.target)).removesuffix(".default")


def _operand_qparams(node: Node, plan: Plan) -> QParams | None:
    """The qparams of the first operand: the precision of an op whose result is fused into the next kernel."""
    return next((plan.qparams(node.name, i) for i, n in enumerate(operands(node)) if n.op != "get_attr"), None)


def _stored(plan: Plan, name: str, info: TensorInfo) -> str:
    """The qparams, or the rule that keeps it float."""
    decided = plan.decision(name)
    return info.dtype if decided is None else str(decided.qparams) if decided.qparams else decided.rule


def _reads(node: Node, plan: Plan) -> list[OperandUse]:
    """An operand without a decision of its own is not converted."""
    found = []
    for place, read in enumerate(operands(node)):
        if read.op != "get_attr":
            decided = plan.decision(node.name, place)
            before = plan.qparams(read.name)
            found.append(OperandUse(read.name, _conversion(before, decided.qparams) if decided else ""))
    return found


def _conversion(before: QParams | None, after: QParams | None) -> str:
    if before == after:
        return ""
    return "quantize" if before is None else "dequantize" if after is None else "requantize"


def _why(plan: Plan, name: str) -> str:
    return plan.why(name) if plan.knows(name) else ""
