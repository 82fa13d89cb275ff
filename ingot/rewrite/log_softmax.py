"""log_softmax(x, d) -> y - log(sum(exp(y), d)), with y = x - amax(x, d)

Arm's passes take the logarithm of the softmax: that is infinite where a probability underflows, in float or
below one step of an 8-bit softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, value_of
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten


def _difference(node: Node, extremum: Callable[..., Node]) -> Node | None:
    if node.target is not aten.log_softmax.int or value_of(node).dim() == 0:
        return None
    x: Any = node.args[0]
    dims = [node.args[1]]
    if value_of(x).dtype != torch.float32:
        return None
    below = call(node, aten.sub.Tensor, x, extremum(node, aten.amax.default, x, dims, True))
    total = call(node, aten.sum.dim_IntList, call(node, aten.exp.default, below), dims, True)
    return call(node, aten.sub.Tensor, below, call(node, aten.log.default, total))


def _with_float_extremum(node: Node) -> Node | None:
    """The result does not depend on what is subtracted, until the exponential of a rounded one overflows."""
    reason = "a maximum that is rounded down lets the exponential overflow"
    return _difference(node, lambda before, *args: in_float(before, reason, *args))


NAME = "log-softmax-as-difference"
RULE = Rule(NAME, _with_float_extremum)
INTEGER_RULE = Rule(NAME, lambda node: _difference(node, call))  # its exponential is a table: it saturates
