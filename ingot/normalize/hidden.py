"""Ops that hide weights inside (gru, lstm, rnn): opened, so that their linears can be planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph


def decompositions_of_hidden_weights(graph: Graph) -> dict[Any, Callable[..., Any]]:
    """Recurrent layers take a list of weights, `Tensor[] params`; no other kind of op does."""
    found = {n.target for n in graph.nodes if n.op == "call_function" and _takes_params(n.target)}
    return {op: _decomposition(op) for op in found}


def _takes_params(op: Any) -> bool:
    schema = getattr(op, "_schema", None)
    return schema is not None and any(a.name == "params" and "List[Tensor]" in str(a.type) for a in schema.arguments)


def _decomposition(op: Any) -> Callable[..., Any]:
    table = torch._decomp.decomposition_table
    return table.get(op, op.decompose)
