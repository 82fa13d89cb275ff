"""view_copy(x, [sym_size(x, 0), 4]) -> view_copy(x, [-1, 4]): delegates infer a size, but read none from another op."""

from __future__ import annotations

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from ingot.core.fx import value_of
from ingot.core.symbolic_sizes import reshape_argument, symbolic_count


def infer_one_size(module: GraphModule) -> PassResult:
    changed = False
    for node in module.graph.nodes:
        if getattr(node.target, "__name__", "") == "aten.view_copy.default" and symbolic_count(value_of(node).shape):
            to = reshape_argument(value_of(node).shape)
            changed |= to is not None and to != node.args[1]
            node.args = (node.args[0], to or node.args[1])
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return PassResult(module, changed)
