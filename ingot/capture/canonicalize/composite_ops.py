"""Decompose composite ops that hide weights (recurrent layers) or plain data movement (aliases) from the planner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.capture.op_semantics import Kind, effect_of

Decomposition = Callable[..., Any]
# A fold whose windows do not overlap moves its elements; torch decomposes it into sums at computed places.
ADDED_UP = (torch.ops.aten.col2im.default,)


def decompositions(graph: Graph) -> dict[Any, Decomposition]:
    """The ops of the graph that are decomposed, each with its decomposition."""
    nodes = _functional_nodes(graph)
    core = _core_decompositions(nodes)
    movers_used = {op: core[op] for op, n in nodes.items() if op in core and _only_moves(n)}
    return movers_used | required_decompositions(graph)


def required_decompositions(graph: Graph) -> dict[Any, Decomposition]:
    """Without movement, which is only brought into one form: some decompositions of torch are not functional."""
    nodes = _functional_nodes(graph)
    scaled = {n.target: _decomposition(n.target) for n in graph.nodes if n.target in nodes and _scales_product(n)}
    return scaled | {op: _decomposition(op) for op in nodes if must_decompose(op)}


def _functional_nodes(graph: Graph) -> dict[Any, Node]:
    return {n.target: n for n in graph.nodes if n.op == "call_function" and not _mutates(n.target)}


def _scales_product(node: Node) -> bool:
    """addmm, baddbmm, addmv … with factors: backends have the plain product and sum only."""
    names = {a.name for a in schema.arguments} if (schema := getattr(node.target, "_schema", None)) else set()
    return {"alpha", "beta"} <= names and any(node.kwargs.get(k, 1) != 1 for k in ("alpha", "beta"))


def _only_moves(node: Node) -> bool:
    """t, swapaxes, split, unbind, stack, roll …: decomposed into the core ATen movement ops, one form each."""
    return node.target not in ADDED_UP and effect_of(node).kind is Kind.MOVES


def _mutates(op: Any) -> bool:
    schema = getattr(op, "_schema", None)
    return schema is not None and schema.is_mutable


def _core_decompositions(ops: Iterable[Any]) -> dict[Any, Decomposition]:
    """Listed once: torch inspects every registered op for it. Anew where custom ops may have been registered since."""
    known = _listed_decompositions()
    new = any(op not in known and getattr(op, "namespace", "aten") != "aten" for op in ops)
    return dict(torch._decomp.core_aten_decompositions().items()) if new else known


@cache
def _listed_decompositions() -> dict[Any, Decomposition]:
    return dict(torch._decomp.core_aten_decompositions().items())


def must_decompose(op: Any) -> bool:
    """Recurrent layers (a list of weights), their cells (`w_ih`), convolutions with string padding (a hidden pad)."""
    schema = getattr(op, "_schema", None)
    arguments = {a.name: str(a.type) for a in schema.arguments} if schema else {}
    return arguments.get("params") == "List[Tensor]" or "w_ih" in arguments or arguments.get("padding") == "str"


def _decomposition(op: Any) -> Decomposition:
    """torch's decomposition. For composite ops that of export: op.decompose would call itself."""
    return torch._decomp.decomposition_table.get(op) or torch.export.default_decompositions()[op]
