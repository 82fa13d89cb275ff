"""where(condition, 0.0, x) -> where(condition, constant, x): the host would convert the number to a tensor"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, same_constant, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target not in (aten.where.Scalar, aten.where.ScalarSelf, aten.where.ScalarOther):
        return None
    return call(node, aten.where.self, node.args[0], *(_tensor(node, a) for a in node.args[1:]))


def _tensor(node: Node, arg: Any) -> Any:
    module: Any = node.graph.owning_module
    if isinstance(arg, Node):
        return arg
    tensor = torch.full((1,) * value_of(node).dim(), arg, dtype=value_of(node).dtype)
    return same_constant(module, tensor, f"number_{arg}_{tensor.dim()}", node)


RULE = Rule("where-scalar-as-constant", _rewrite)
