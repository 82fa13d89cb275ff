"""softmax(x, d) -> permute(softmax(permute(x), last))
softmax(x, 3) of four dimensions -> reshape(softmax(reshape(x, [n * c, h, w]), 2), [n, c, h, w])

XNNPACK has softmax over the last axis in memory. It keeps the output of a convolution or a pool channels-last: the last
axis of four dimensions is then the channels. A tensor of three dimensions has only one layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.core.symbolic_sizes import same_shape
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    rank = value_of(node).dim()
    if node.target is not aten.softmax.int or rank == 0:
        return None
    x: Any = node.args[0]
    dim = node.args[1] % rank  # type: ignore[operator]
    if dim != rank - 1:
        return _over_inner_axis(node, x, dim, rank)
    return _in_three_dimensions(node, x, list(value_of(node).shape)) if rank == 4 and _may_be_channels_last(x) else None


def _over_inner_axis(node: Node, x: Node, dim: int, rank: int) -> Node:
    order = [*(d for d in range(rank) if d != dim), dim]
    turned = call(node, aten.permute.default, x, order)
    made = _in_three_dimensions(node, turned, list(value_of(turned).shape)) if rank == 4 else None
    made = made or call(node, aten.softmax.int, turned, rank - 1)
    return call(node, aten.permute.default, made, [order.index(d) for d in range(rank)])


def _in_three_dimensions(node: Node, x: Node, shape: list[Any]) -> Node | None:
    if has_symbols(shape):
        return None
    n, c, h, w = shape
    flat = call(node, aten.reshape.default, x, [n * c, h, w])
    return call(node, aten.reshape.default, call(node, aten.softmax.int, flat, 2), shape)


def _may_be_channels_last(value: Node) -> bool:
    """False if pointwise ops compute it from inputs, constants and results of reshapes only."""
    queue, seen = [value], {value}
    while queue:
        node = queue.pop()
        if node.op != "call_function" or node.target is aten.reshape.default:
            continue
        if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
            return True
        sources = [
            n for n in node.all_input_nodes if same_shape(value_of(n).shape, value_of(value).shape)
        ]  # without broadcast operands
        queue += [n for n in sources if n not in seen]
        seen.update(sources)
    return False


RULE = Rule("softmax-in-3d", _rewrite)
