"""avg_pool3d(x, [k, 1, 1], [s, 1, 1]) -> reshape(avg_pool2d(reshape(x, [N, C, D, H*W]), [k, 1], [s, 1]))"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    """Local response norm uses it to pool over channels; neither the backends nor the runtime have avg_pool3d."""
    if node.target is not aten.avg_pool3d.default or len(node.args) > 3 or has_symbols(value_of(node).shape):
        return None
    x: Any = node.args[0]
    kernel, stride = _triple(node, 1), _triple(node, 2) or _triple(node, 1)
    if kernel[1:] != [1, 1] or stride[1:] != [1, 1] or value_of(x).dim() != 5:
        return None
    n, c, d, h, w = value_of(x).shape
    flat = call(node, aten.reshape.default, x, [n, c, d, h * w])
    pooled = call(node, aten.avg_pool2d.default, flat, [kernel[0], 1], [stride[0], 1])
    return call(node, aten.reshape.default, pooled, list(value_of(node).shape))


def _triple(node: Node, at: int) -> list[int]:
    given: Any = node.args[at] if len(node.args) > at else []
    return list(given) if len(given) != 1 else list(given) * 3


RULE = Rule("depth-pool-as-2d", _rewrite)
