"""op -> torch's own decomposition of it, where all ops of that decomposition run and the op itself does not

Bicubic and trilinear upsampling, bilinear layers, argsort …: ExecuTorch keeps them whole, and no kernel runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ingot.core.fx import calls
from ingot.rewrite.decomposition import canonicalize_again, has_static_shapes, inline, traced


@dataclass(frozen=True)
class TorchDecompositions:
    """`wanted`: the op runs nowhere. `covered`: ops that later rules replace."""

    wanted: Callable[[Node], bool]
    covered: frozenset[Any]
    name: str = "torch-decompositions"
    required: bool = True

    def apply(self, module: GraphModule) -> list[str]:
        places = [place for node in calls(module) if (place := self._replace(module, node)) is not None]
        if places:
            canonicalize_again(module)
        return places

    def _replace(self, module: GraphModule, node: Node) -> str | None:
        function = _decomposition_of(node.target)
        if function is None or node.target in self.covered or not has_static_shapes(node) or not self.wanted(node):
            return None
        graph = traced(function, module, node)
        return inline(node, graph) if graph is not None and self._runs(graph) else None

    def _runs(self, graph: Graph) -> bool:
        ops = [n for n in graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
        return all(n.target in self.covered or not self.wanted(n) for n in ops)


def _decomposition_of(op: Any) -> Callable[..., Any] | None:
    """Registered, or what a composite op is made of."""
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return None
    found = torch._decomp.decomposition_table.get(op)
    composite = op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return found or (op.decompose if composite else None)
