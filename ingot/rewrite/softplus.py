"""softplus(x) -> relu(x) + log(1 + exp(-|x|))"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, is_float, value_of
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
REASON = "part of a softplus: exp and log need float"


def _rewrite(node: Node) -> Node | None:
    """ExecuTorch's decomposition uses where, which runs on the host. This form is as exact and is delegated."""
    if node.target is not aten.softplus.default or len(node.args) > 1 or not is_float(node):
        return None
    x: Any = node.args[0]
    small = in_float(
        node,
        REASON,
        aten.exp.default,
        in_float(node, REASON, aten.neg.default, in_float(node, REASON, aten.abs.default, x)),
    )
    ones = torch.ones((1,) * max(1, value_of(x).dim()), dtype=value_of(x).dtype)
    one = add_constant(node.graph.owning_module, ones, f"{node.name}_one", node)  # type: ignore[arg-type]
    tail = in_float(node, REASON, aten.log.default, in_float(node, REASON, aten.add.Tensor, small, one))
    return in_float(node, REASON, aten.add.Tensor, in_float(node, REASON, aten.relu.default, x), tail)


RULE = Rule("softplus-decomposed", _rewrite)
