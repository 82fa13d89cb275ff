"""The graph of a program: each value with where it runs, how it is stored and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch.fx import Node as FxNode

from ingot.calibrate.histogram import Stats
from ingot.capture.op_semantics import operands
from ingot.core.artefact import TensorInfo
from ingot.core.fx import module_path, source_of, value_name
from ingot.lower.partition_report import tensor_info
from ingot.plan.model import Plan, QParams
from ingot.result.details.model import Node, Read
from ingot.result.details.recorded import spread_of

if TYPE_CHECKING:
    from ingot.result.casting import Casting


def nodes_of(casting: Casting, stats: Mapping[str, Stats], errors: Mapping[str, float]) -> tuple[Node, ...]:
    """In graph order; constants are named by their readers and are no nodes."""
    graph, places = casting.needed_evidence.program.module.graph, places_of(casting)
    shown = [n for n in graph.nodes if n.op != "get_attr"]
    return tuple(_node(n, casting.plan, places, stats, errors) for n in shown)


def places_of(casting: Casting) -> dict[str, int]:
    """By value: the number of its delegate, or 0 for the host."""
    inside = {v: i for i, d in enumerate(casting.delegates, 1) for v in d.values}
    return {**inside, **dict.fromkeys(casting.hosted.values(), 0)}


def _node(
    node: FxNode, plan: Plan, places: Mapping[str, int], stats: Mapping[str, Stats], errors: Mapping[str, float]
) -> Node:
    info, storage, seen = tensor_info(node), plan.qparams(node.name), stats.get(value_name(node))
    inside = storage or _operand(node, plan)
    return Node(
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
        spread=None if seen is None else spread_of(seen, storage),
        sqnr_db=errors.get(node.name),
    )


def _op(node: FxNode) -> str:
    if node.op != "call_function":
        return "input" if node.op == "placeholder" else node.op
    return str(getattr(node.target, "__name__", node.target)).removesuffix(".default")


def _operand(node: FxNode, plan: Plan) -> QParams | None:
    """How an op reads its first value: what it works on where its result goes on inside a kernel."""
    return next((plan.qparams(node.name, i) for i, n in enumerate(operands(node)) if n.op != "get_attr"), None)


def _stored(plan: Plan, name: str, info: TensorInfo) -> str:
    """Integers, or why there are none."""
    decided = plan.decision(name)
    return info.dtype if decided is None else str(decided.qparams) if decided.qparams else decided.rule


def _reads(node: FxNode, plan: Plan) -> list[Read]:
    """An operand with no decision of its own is read as it is."""
    found = []
    for place, read in enumerate(operands(node)):
        if read.op != "get_attr":
            decided = plan.decision(node.name, place)
            before = plan.qparams(read.name)
            found.append(Read(read.name, _converts(before, decided.qparams) if decided else ""))
    return found


def _converts(before: QParams | None, after: QParams | None) -> str:
    if before == after:
        return ""
    return "quantize" if before is None else "dequantize" if after is None else "requantize"


def _why(plan: Plan, name: str) -> str:
    return plan.why(name) if plan.knows(name) else ""
