"""quantize(move(dequantize(x))) -> quantize(move(dequantize(quantize(dequantize(x))))), with the outer scale inside

XNNPACK runs an op between a dequantize and a quantize on integers, also one that is planned in float. Its kernels for
ops that move numbers have one scale: with two the file does not load. Rounding before the move gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import calls, constant_of

DEQUANTIZE, QUANTIZE = "dequantize_per_tensor", "quantize_per_tensor"


def moving_ops(program: GraphModule) -> set[str]:
    """Names of the ops of the float program that only move numbers."""
    return {n.name for n in calls(program) if effect_of(n, constant_of).kind is Kind.MOVES}


def requantize_before_moves(quantized: GraphModule, moving: Collection[str]) -> None:
    for node in [n for n in calls(quantized) if n.name in moving and len(n.all_input_nodes) == 1]:
        before = node.all_input_nodes[0]
        after = [u for u in node.users if _is(u, QUANTIZE) and u.args[1:] != before.args[1:]]
        for quantize in after if _is(before, DEQUANTIZE) else ():
            _requantize(node, before, quantize)
    quantized.graph.eliminate_dead_code()
    quantized.recompile()


def _is(node: Node, op: str) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "").startswith(op)


def _requantize(node: Node, dequantize: Node, quantize: Node) -> None:
    """A copy of the op for this consumer: others may read it with other qparams."""
    graph, qparams = node.graph, quantize.args[1:]
    with graph.inserting_before(quantize):
        stored = graph.call_function(quantize.target, (dequantize, *qparams))  # type: ignore[arg-type]
        read = graph.call_function(dequantize.target, (stored, *qparams))  # type: ignore[arg-type]
        moved = graph.node_copy(node, lambda _: read)
    stored.meta, read.meta = dict(dequantize.all_input_nodes[0].meta), dict(dequantize.meta)
    quantize.replace_input_with(node, moved)
