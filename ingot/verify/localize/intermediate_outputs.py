"""Intermediate values of an artefact: lower its quantized graph again with some of them as extra outputs, and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, copy_graph_module, is_call, is_float, output_nodes
from ingot.lower.edge import MAIN_METHOD, lower_graph
from ingot.plan.plan_data import Plan, QParams
from ingot.quantize.audit import qdq_chain
from ingot.quantize.integer_io import OUTPUT_NODE
from ingot.verify.check import Evidence, run_artefact, run_graph, run_quantized

Batches = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class ObservedValue:
    """One value, by batch: in the float program, in the quantized graph and in the artefact."""

    reference: list[torch.Tensor]
    quantized: list[torch.Tensor]
    artefact: list[torch.Tensor]

    def joined(self, more: ObservedValue) -> ObservedValue:
        """On the batches of both."""
        return ObservedValue(
            self.reference + more.reference, self.quantized + more.quantized, self.artefact + more.artefact
        )


@dataclass(frozen=True)
class IntermediateRun:
    """What one lowering returned: the program's outputs and the extra outputs; and its number of delegates."""

    observed: dict[str, ObservedValue]
    delegates: int


def observable_values(evidence: Evidence, plan: Plan) -> dict[str, Node]:
    """Values that can be returned without changing a kernel, in graph order; each with its node in the quantized graph.

    A quantized value is returned after its dequantize. A value inside a fused kernel (a convolution before its relu) is
    not observable.
    """
    by_name = {n.name: n for n in evidence.quantized.graph.nodes}
    found = {n.name: _returned_node(by_name.get(n.name), plan) for n in calls(evidence.program.module) if is_float(n)}
    requantized = {n.name for i, n in enumerate(_outputs(evidence)) if _is_requantized(n, i, plan)}
    return {name: node for name, node in found.items() if node is not None and name not in requantized}


def _outputs(evidence: Evidence) -> list[Node]:
    return output_nodes(evidence.program.module)


def _is_requantized(node: Node, place: int, plan: Plan) -> bool:
    """The program returns it with other qparams than its own."""
    return plan.qparams(OUTPUT_NODE, place) not in (None, plan.qparams(node.name))


def _returned_node(node: Node | None, plan: Plan) -> Node | None:
    if node is None:
        return None
    qparams = plan.qparams(node.name)
    if qparams is None:
        return None if node.meta.get("quantization_annotation") else node
    quantizes = quantize_nodes(node, qparams)
    return next((u for q in quantizes for u in q.users if is_call(u, "dequantize_per_tensor")), None)


def quantize_nodes(node: Node, qparams: QParams) -> list[Node]:
    """The quantize nodes that give the value its planned qparams."""
    rounded = [u for u in node.users if is_call(u, "quantize_per_tensor")]
    reads = {q: [u for u in q.users if is_call(u, "dequantize_per_tensor")] for q in rounded}
    return [q for q, after in reads.items() if any(qdq_chain(u)[0][-1:] == [qparams] for u in after)]


def run_with_intermediates(evidence: Evidence, plan: Plan, names: Sequence[str], batches: Batches) -> IntermediateRun:
    """Lower the graph with these values as extra outputs, run it, and collect them from all three programs."""
    found = observable_values(evidence, plan)
    returned = {n.name for n in _outputs(evidence)}
    extended = _with_outputs(evidence, {n: found[n] for n in names if n not in returned})
    module, state = extended.program.module, extended.program.state
    pte, extended = _lowered(extended, plan)
    runs = (run_graph(module, batches, state), run_quantized(extended, batches), run_artefact(pte, extended, batches))
    keys = [n.name for n in output_nodes(module)]
    observed = {k: ObservedValue(*([batch[i] for batch in run] for run in runs)) for i, k in enumerate(keys)}
    return IntermediateRun(observed, len(extended.delegates))


def _with_outputs(evidence: Evidence, chosen: dict[str, Node]) -> Evidence:
    module = _returning(evidence.program.module, list(chosen))
    quantized = _returning(evidence.quantized, [n.name for n in chosen.values()])
    return replace(evidence, program=replace(evidence.program, module=module), quantized=quantized)


def _returning(module: GraphModule, names: Sequence[str]) -> GraphModule:
    work = copy_graph_module(module)
    by_name = {n.name: n for n in work.graph.nodes}
    last: Any = by_name[OUTPUT_NODE]
    last.args = ((*last.args[0], *(by_name[n] for n in names)),)
    work.recompile()
    return work


def _lowered(evidence: Evidence, plan: Plan) -> tuple[bytes, Evidence]:
    done = lower_graph(evidence.program, evidence.quantized, plan, evidence.target)
    main = done.methods[MAIN_METHOD]
    return done.pte, replace(evidence, io=main.io, delegates=main.delegates, method=MAIN_METHOD)
