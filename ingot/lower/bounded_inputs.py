"""Inputs that may be shorter than the program was lowered for.

A delegate that looks at the sizes of what it is given needs no symbols for them: the program is lowered for the
largest, in a quarter of the time, and the file says that these inputs vary. Only where delegates alone read them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Node

from ingot.errors import LowerError


def memory_planning_pass(lend: bool, varying: Collection[int]) -> Any:
    """How memory is laid out, with the inputs that vary marked before."""
    from executorch.exir.passes import MemoryPlanningPass

    class Planning(MemoryPlanningPass):  # type: ignore[misc]
        def run(self, graph_module: torch.fx.GraphModule, graph_signature: Any = None) -> Any:
            _mark_dynamic_bound(graph_module, graph_signature, varying)
            return super().run(graph_module, graph_signature)

    return Planning(alloc_graph_input=not lend)


def _mark_dynamic_bound(module: torch.fx.GraphModule, signature: Any, varying: Collection[int]) -> None:
    from executorch.exir.schema import TensorShapeDynamism

    nodes = {n.name: n for n in module.graph.nodes if n.op == "placeholder"}
    for node in (nodes[signature.user_inputs[i]] for i in varying):
        _refuse_host_consumers(node)
        node.meta["spec"].shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND


def _refuse_host_consumers(node: Node) -> None:
    on_host = [u for u in node.users if "call_delegate" not in str(u.target)]
    if on_host:
        why = f"{on_host[0].target} on the host reads {node.name}, and has memory for one size"
        hint = "cast with a context of 32 tokens or less: then nothing varies"
        raise LowerError("an input that varies in length is read outside the delegate", why=why, hint=hint)
