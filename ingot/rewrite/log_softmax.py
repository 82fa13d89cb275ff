"""log_softmax(x, d) -> y - log(sum(exp(y), d)), with y = x - amax(x, d)

Arm's passes take the logarithm of the softmax: that is infinite where a probability underflows, in float or
below one step of an 8-bit softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.log_softmax.int or value_of(node).dim() == 0:
        return None
    x: Any = node.args[0]
    dims = [node.args[1]]
    if value_of(x).dtype != torch.float32:
        return None
    below = call(node, aten.sub.Tensor, x, call(node, aten.amax.default, x, dims, True))
    total = call(node, aten.sum.dim_IntList, call(node, aten.exp.default, below), dims, True)
    return call(node, aten.sub.Tensor, below, call(node, aten.log.default, total))


RULE = Rule("log-softmax-as-difference", _rewrite)
