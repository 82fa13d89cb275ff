"""copy(x, y) -> y expanded to x; add(x, y, alpha=a) -> add(x, y * a); linear(x, vector) -> linear(x, matrix of one row)

No operand that is not read, no hidden factor, and every weight of a linear has channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, has_symbols, replace, value_of

aten = torch.ops.aten


def plain_operands(module: GraphModule) -> int:
    return sum(_without_destination(node) or _without_factor(node) or _with_channels(node) for node in calls(module))


def _without_destination(node: Node) -> bool:
    """What a slice assignment writes. Of x only shape and type matter."""
    if node.target is not aten.copy.default:
        return False
    x, y = (value_of(n) for n in node.args[:2])  # type: ignore[arg-type]
    if x.dtype != y.dtype or has_symbols((*x.shape, *y.shape)):
        return False
    source: Any = node.args[1]
    replace(node, source if x.shape == y.shape else call(node, aten.expand.default, source, list(x.shape)))
    return True


def _without_factor(node: Node) -> bool:
    """Of a sum or difference. XNNPACK's partitioner takes it and its kernel adds without the factor."""
    if node.target not in (aten.add.Tensor, aten.sub.Tensor) or node.kwargs.get("alpha", 1) == 1:
        return False
    x, y = node.args
    if not isinstance(y, Node):
        return False
    node.args = (x, call(node, aten.mul.Tensor, y, node.kwargs["alpha"]))
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "alpha"}
    return True


def _with_channels(node: Node) -> bool:
    """A vector in place of a linear's weight gives one number for each row."""
    if node.target is not aten.linear.default or value_of(node.args[1]).dim() != 1:  # type: ignore[arg-type]
        return False
    if has_symbols(value_of(node).shape):
        return False
    x, vector, *bias = node.args
    row = call(node, aten.reshape.default, vector, [1, -1])
    one = [call(node, aten.reshape.default, b, [1]) for b in bias if isinstance(b, Node)]
    made = call(node, aten.linear.default, x, row, *one)
    replace(node, call(node, aten.reshape.default, made, list(value_of(node).shape)))
    return True
