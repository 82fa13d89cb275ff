"""softplus(x) -> relu(x) + log(1 + exp(-|x|))"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.graph import add_constant, call, is_float, value_of
from ingot.legalize.rule import Rule

aten = torch.ops.aten
REASON = "part of a softplus: exp and log need float"


def rewrite(node: Node) -> Node | None:
    """Decomposed as usual it compares and chooses, on the host. This form is as exact and stays inside."""
    if node.target is not aten.softplus.default or len(node.args) > 1 or not is_float(node):
        return None
    x: Any = node.args[0]
    small = _float(node, aten.exp.default, _float(node, aten.neg.default, _float(node, aten.abs.default, x)))
    ones = torch.ones((1,) * max(1, value_of(x).dim()), dtype=value_of(x).dtype)
    one = add_constant(node.graph.owning_module, ones, f"{node.name}_one", node)  # type: ignore[arg-type]
    tail = _float(node, aten.log.default, _float(node, aten.add.Tensor, small, one))
    return _float(node, aten.add.Tensor, _float(node, aten.relu.default, x), tail)


def _float(node: Node, target: Any, *args: Any) -> Node:
    new = call(node, target, *args)
    new.meta["ingot_float"] = REASON
    return new


RULE = Rule("softplus without a choice", rewrite)
