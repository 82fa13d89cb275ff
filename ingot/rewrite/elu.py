"""elu(x, a) -> relu(x) + a * (exp(-relu(-x)) - 1)"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
REASON = "part of an elu: exp needs float"


def _rewrite(node: Node) -> Node | None:
    """XNNPACK has no elu kernel, but one for each of these ops."""
    if node.target is not aten.elu.default or len(node.args) > 2:  # selu has more arguments
        return None
    x: Any = node.args[0]
    alpha: Any = node.args[1] if len(node.args) > 1 else 1.0
    below = in_float(node, REASON, aten.relu.default, in_float(node, REASON, aten.neg.default, x))
    grown = in_float(node, REASON, aten.exp.default, in_float(node, REASON, aten.neg.default, below))
    tail = in_float(node, REASON, aten.mul.Tensor, in_float(node, REASON, aten.sub.Tensor, grown, 1.0), float(alpha))
    return in_float(node, REASON, aten.add.Tensor, in_float(node, REASON, aten.relu.default, x), tail)


RULE = Rule("elu-decomposed", _rewrite)
