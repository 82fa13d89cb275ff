"""constant_pad_nd(x, amounts) -> constant_pad_nd(slices of x, amounts of at least 0) where an amount is negative."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, value_of

aten = torch.ops.aten


def crop_before_padding(module: GraphModule) -> int:
    """A negative amount removes elements. Backends pad by zero or more."""
    return sum(_crop(node) for node in calls(module) if node.target is aten.constant_pad_nd.default)


def _crop(node: Node) -> bool:
    x: Any = node.args[0]
    amounts: Any = node.args[1]
    if not all(isinstance(a, int) for a in amounts) or min(amounts, default=0) >= 0:
        return False
    last = value_of(x).dim() - 1
    for i, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if min(before, after) < 0:
            x = _cropped(x, last - i, max(-before, 0), max(-after, 0), node)
    node.args = (x, [max(a, 0) for a in amounts], *node.args[2:])
    return True


def _cropped(x: Node, dim: int, before: int, after: int, node: Node) -> Node:
    return call(node, aten.slice.Tensor, x, dim, before, value_of(x).shape[dim] - after)
