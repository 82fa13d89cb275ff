"""Composite ops that hide what the planner must see: weights inside recurrent layers, plain movement behind aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.capture.op_semantics import Kind, effect_of

Decomposition = Callable[..., Any]


def decompositions(graph: Graph) -> dict[Any, Decomposition]:
    """For each op of the graph that should be opened: how."""
    nodes = {n.target: n for n in graph.nodes if n.op == "call_function" and not _writes(n.target)}
    movers = _core_decompositions()
    opened = {op: movers[op] for op, n in nodes.items() if op in movers and _only_moves(n)}
    return opened | {op: _decomposition(op) for op in nodes if hides(op)}


def _only_moves(node: Node) -> bool:
    """t, swapaxes, split, unbind, stack, roll …: spelled with the few movers of core ATen, each is one operation."""
    return effect_of(node).kind is Kind.MOVES


def _writes(op: Any) -> bool:
    schema = getattr(op, "_schema", None)
    return schema is not None and schema.is_mutable


def _core_decompositions() -> dict[Any, Decomposition]:
    return dict(torch._decomp.core_aten_decompositions().items())


def hides(op: Any) -> bool:
    """Recurrent layers take a list of weights, their cells `w_ih`; a convolution with padding in words hides a pad."""
    schema = getattr(op, "_schema", None)
    arguments = {a.name: str(a.type) for a in schema.arguments} if schema else {}
    return arguments.get("params") == "List[Tensor]" or "w_ih" in arguments or arguments.get("padding") == "str"


def _decomposition(op: Any) -> Decomposition:
    """torch's own; for composite ops the one that export keeps, since op.decompose would come back to itself there."""
    return torch._decomp.decomposition_table.get(op) or torch.export.default_decompositions()[op]
