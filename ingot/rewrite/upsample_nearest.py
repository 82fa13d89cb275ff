"""upsample_nearest2d(x, factor s) -> reshape(cat of s copies along new dimensions after height and width)"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    """Integer factors only: each element is repeated s times along height and width."""
    if node.target is not aten.upsample_nearest2d.vec:
        return None
    x: Any = node.args[0]
    small, big = list(value_of(x).shape), list(value_of(node).shape)
    if has_symbols(small + big) or big[2] % small[2] or big[3] % small[3]:
        return None
    n, c, h, w = small
    tall, wide = big[2] // h, big[3] // w
    rows = _repeated(node, x, [n, c, h, 1, w], 3, tall)
    columns = _repeated(node, rows, [n, c, h * tall, w, 1], 4, wide)
    return call(node, aten.reshape.default, columns, big)


def _repeated(node: Node, x: Node, shape: list[int], dim: int, times: int) -> Node:
    """Each copy is a separate reshape: XNNPACK's partitioner refuses a cat of a node with itself."""
    copies = [call(node, aten.reshape.default, x, shape) for _ in range(times)]
    return call(node, aten.cat.default, copies, dim) if times > 1 else copies[0]


RULE = Rule("upsample-nearest-as-cat", _rewrite)
