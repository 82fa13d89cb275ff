"""softmax(x, 3) of four dimensions -> reshape(softmax(reshape(x, [n * c, h, w]), 2), [n, c, h, w])

XNNPACK keeps the output of a convolution or a pool channels-last and computes softmax over the last axis in memory: the
channels. A tensor of three dimensions has only one layout.
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
    if node.target is not aten.softmax.int or node.args[1] not in (3, -1) or value_of(node).dim() != 4:
        return None
    x: Any = node.args[0]
    n, c, h, w = shape = list(value_of(node).shape)
    if has_symbols(shape) or not _may_be_channels_last(x):
        return None
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
