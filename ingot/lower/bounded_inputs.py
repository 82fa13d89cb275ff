"""Inputs with an upper bound on their size, lowered without symbolic shapes.

A delegate that reads the sizes of its inputs at run time needs no symbols: the program is lowered for the largest size,
in a quarter of the time, and the file marks these inputs as DYNAMIC_BOUND. Only delegates may read them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Node

from ingot.errors import LowerError


def memory_planning_pass(caller_owned: bool, bounded: Collection[int]) -> Any:
    """Plans memory after marking the bounded inputs; caller-owned inputs get no memory in the plan."""
    from executorch.exir.passes import MemoryPlanningPass

    class BoundedInputPlanning(MemoryPlanningPass):  # type: ignore[misc]
        def run(self, graph_module: torch.fx.GraphModule, graph_signature: Any = None) -> Any:
            _mark_dynamic_bound(graph_module, graph_signature, bounded)
            return super().run(graph_module, graph_signature)

    return BoundedInputPlanning(alloc_graph_input=not caller_owned)


def _mark_dynamic_bound(module: torch.fx.GraphModule, signature: Any, bounded: Collection[int]) -> None:
    from executorch.exir.schema import TensorShapeDynamism

    nodes = {n.name: n for n in module.graph.nodes if n.op == "placeholder"}
    for node in (nodes[signature.user_inputs[i]] for i in bounded):
        _refuse_host_consumers(node)
        node.meta["spec"].shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND


def _refuse_host_consumers(node: Node) -> None:
    on_host = [u for u in node.users if "call_delegate" not in str(u.target)]
    if on_host:
        why = f"the host op {on_host[0].target} reads {node.name} and has memory for one size only"
        hint = "cast with a context of 32 tokens or less: then all sizes are static"
        raise LowerError("an input of variable length is read outside the delegate", why=why, hint=hint)
