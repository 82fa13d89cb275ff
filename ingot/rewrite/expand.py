"""div(x, expand(y, shape)) -> div(x, y), and so for every op that broadcasts its operands"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, value_of
from ingot.core.symbolic_sizes import same_shape
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if not any(isinstance(a, Node) and a.target is aten.expand.default for a in node.args):
        return None
    args = [a.args[0] if isinstance(a, Node) and a.target is aten.expand.default else a for a in node.args]
    target: Any = node.target
    return call(node, target, *args) if not node.kwargs and _broadcasts(node, args) else None


def _broadcasts(node: Node, args: list[Any]) -> bool:
    """The op gives the same shape for the operands before expansion. Found by running it on fake tensors."""
    inner = [value_of(a).shape for a in args if isinstance(a, Node)]
    try:
        broadcast = torch.broadcast_shapes(*inner)
        values = [value_of(a) if isinstance(a, Node) else a for a in args]
        made = node.target(*values)  # type: ignore[operator]
    except (RuntimeError, ValueError):
        return False
    return len(inner) > 1 and same_shape(broadcast, value_of(node).shape) and same_shape(made.shape, broadcast)


RULE = Rule("expand-by-broadcasting", _rewrite)
