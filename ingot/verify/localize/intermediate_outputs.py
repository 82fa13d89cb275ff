"""Values inside an artefact: the quantized graph is lowered again with some of them returned too, and run like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, copied, is_call, is_float, output_nodes
from ingot.lower.edge import MAIN_METHOD, lower_graph
from ingot.plan.model import Plan, QParams
from ingot.quantize.audit import qdq_chain
from ingot.quantize.io import OUTPUT_NODE
from ingot.verify.check import Evidence, run_artefact, run_graph, run_quantized

Batches = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Seen:
    """One value, by batch: in the float program, in the quantized graph and in the artefact."""

    wanted: list[torch.Tensor]
    graph: list[torch.Tensor]
    made: list[torch.Tensor]


@dataclass(frozen=True)
class Look:
    """What one lowering showed: the program's outputs and the values that were asked for; and in how many pieces."""

    seen: dict[str, Seen]
    delegates: int


def taps(evidence: Evidence, plan: Plan) -> dict[str, Node]:
    """Values that can be returned and leave every kernel as it is, in graph order; as the quantized graph has them.

    What is stored is returned as it is stored. What an integer kernel makes on its way (a convolution before its relu)
    is nowhere to be had.
    """
    made = {n.name: n for n in evidence.quantized.graph.nodes}
    found = {n.name: _tap(made.get(n.name), plan) for n in calls(evidence.program.module) if is_float(n)}
    otherwise = {n.name for i, n in enumerate(_outputs(evidence)) if _stored_again(n, i, plan)}
    return {name: tap for name, tap in found.items() if tap is not None and name not in otherwise}


def _outputs(evidence: Evidence) -> list[Node]:
    return output_nodes(evidence.program.module)


def _stored_again(node: Node, place: int, plan: Plan) -> bool:
    """Returned in another form than it is stored in."""
    return plan.qparams(OUTPUT_NODE, place) not in (None, plan.qparams(node.name))


def _tap(node: Node | None, plan: Plan) -> Node | None:
    if node is None:
        return None
    storage = plan.qparams(node.name)
    if storage is None:
        return None if node.meta.get("quantization_annotation") else node
    return next((u for q in stored_by(node, storage) for u in q.users if is_call(u, "dequantize_per_tensor")), None)


def stored_by(node: Node, storage: QParams) -> list[Node]:
    """The quantizes that store the value as planned."""
    rounded = [u for u in node.users if is_call(u, "quantize_per_tensor")]
    reads = {q: [u for u in q.users if is_call(u, "dequantize_per_tensor")] for q in rounded}
    return [q for q, after in reads.items() if any(qdq_chain(u)[0][-1:] == [storage] for u in after)]


def look(evidence: Evidence, plan: Plan, names: Sequence[str], batches: Batches) -> Look:
    """Lower the graph with these values returned too, run it, and read them off in all three."""
    found = taps(evidence, plan)
    returned = {n.name for n in _outputs(evidence)}
    tapped = _tapped(evidence, {n: found[n] for n in names if n not in returned})
    module, state = tapped.program.module, tapped.program.state
    pte, tapped = _lowered(tapped, plan)
    runs = (run_graph(module, batches, state), run_quantized(tapped, batches), run_artefact(pte, tapped, batches))
    keys = [n.name for n in output_nodes(module)]
    seen = {k: Seen(*([batch[i] for batch in run] for run in runs)) for i, k in enumerate(keys)}
    return Look(seen, len(tapped.delegates))


def _tapped(evidence: Evidence, chosen: dict[str, Node]) -> Evidence:
    module = _returning(evidence.program.module, list(chosen))
    quantized = _returning(evidence.quantized, [n.name for n in chosen.values()])
    return replace(evidence, program=replace(evidence.program, module=module), quantized=quantized)


def _returning(module: GraphModule, names: Sequence[str]) -> GraphModule:
    work = copied(module)
    by_name = {n.name: n for n in work.graph.nodes}
    last: Any = by_name[OUTPUT_NODE]
    last.args = ((*last.args[0], *(by_name[n] for n in names)),)
    work.recompile()
    return work


def _lowered(evidence: Evidence, plan: Plan) -> tuple[bytes, Evidence]:
    done = lower_graph(evidence.program, evidence.quantized, plan, evidence.target)
    main = done.methods[MAIN_METHOD]
    return done.pte, replace(evidence, io=main.io, delegates=main.delegates, method=MAIN_METHOD)
