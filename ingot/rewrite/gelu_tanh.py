"""gelu(x, tanh) -> x * sigmoid(x * (a + b * x * x))"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
REASON = "part of a gelu: a cube needs float"
LINEAR = 2 * math.sqrt(2 / math.pi)  # (1 + tanh(u)) / 2 = sigmoid(2 u)
CUBIC = 0.044715 * LINEAR


def _rewrite(node: Node) -> Node | None:
    """XNNPACK's kernel has the erf form only, and computes it for the tanh form too: an error of 5e-4."""
    if node.target is not aten.gelu.default or node.kwargs.get("approximate") != "tanh":
        return None
    x: Any = node.args[0]
    square = in_float(node, REASON, aten.mul.Tensor, x, x)
    slope = in_float(node, REASON, aten.add.Tensor, in_float(node, REASON, aten.mul.Tensor, square, CUBIC), LINEAR)
    gate = in_float(node, REASON, aten.sigmoid.default, in_float(node, REASON, aten.mul.Tensor, slope, x))
    return in_float(node, REASON, aten.mul.Tensor, gate, x)


RULE = Rule("gelu-tanh-decomposed", _rewrite)
