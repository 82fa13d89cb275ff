"""rms_norm(x, [n], weight, eps) -> x * rsqrt(mean(x * x) + eps) * weight, which Vulkan fuses into one shader"""

from __future__ import annotations

import torch
from torch.fx import Node

from ingot.core.fx import call, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.rms_norm.default or len(node.args[1]) != 1:  # type: ignore[arg-type]
        return None
    x, _, weight, eps = (*node.args, None, None)[:4]
    small = torch.finfo(value_of(node).dtype).eps if eps is None else eps
    mean = call(node, aten.mean.dim, call(node, aten.mul.Tensor, x, x), [-1], True)
    made = call(node, aten.mul.Tensor, x, call(node, aten.rsqrt.default, call(node, aten.add.Tensor, mean, small)))
    return made if weight is None else call(node, aten.mul.Tensor, made, weight)


RULE = Rule("rms-norm-decomposed", _rewrite)
