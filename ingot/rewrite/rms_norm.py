"""rms_norm(x, [n], weight, eps) -> x * rsqrt(mean(x * x) + eps) * weight, which Vulkan fuses into one shader"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import value_of
from ingot.rewrite.layer_norm import REASON
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.rms_norm.default or len(node.args[1]) != 1:  # type: ignore[arg-type]
        return None
    x, _, weight, eps = (*node.args, None, None)[:4]
    small = torch.finfo(value_of(node).dtype).eps if eps is None else eps
    mean = _op(node, aten.mean.dim, _op(node, aten.mul.Tensor, x, x), [-1], True)
    made = _op(node, aten.mul.Tensor, x, _op(node, aten.rsqrt.default, _op(node, aten.add.Tensor, mean, small)))
    return made if weight is None else _op(node, aten.mul.Tensor, made, weight)


def _op(node: Node, op: Any, *args: Any) -> Node:
    return in_float(node, REASON, op, *args)


RULE = Rule("rms-norm-decomposed", _rewrite)
