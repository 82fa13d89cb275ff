"""view_copy(x, [sym_size(x, 0), 4]) -> view_copy(x, [-1, 4]): delegates infer a size, but read none from another op."""

from __future__ import annotations

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from ingot.capture.varying_size import VARYING
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


def infer_varying_size(module: GraphModule) -> PassResult:
    """view_copy(x, [1, 96, 4]) -> view_copy(x, [1, -1, 4]) where that size varies between calls, without symbols."""
    changed = False
    for node in module.graph.nodes:
        if getattr(node.target, "__name__", "") == "aten.view_copy.default":
            shape, at = (node.meta.get("custom") or {}).get(VARYING, (None, 0))
            if shape == tuple(value_of(node).shape):
                changed, node.args = True, (node.args[0], [-1 if i == at else d for i, d in enumerate(shape)])
    module.recompile()
    return PassResult(module, changed)
