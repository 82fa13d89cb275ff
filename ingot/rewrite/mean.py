"""mean(x, dims, keepdim=False) -> reshape(mean(x, dims, keepdim=True))
mean(x, [-1], keepdim=True) -> linear(x, 1/d)
adaptive_avg_pool2d(x, 1) -> mean(x, [2, 3], keepdim=True)

Pooling kernels keep their dimensions. ExecuTorch decomposes adaptive_avg_pool2d of a channels-last value to as_strided.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.core.symbolic_sizes import reshape_argument
from ingot.rewrite.layer_norm import mean_over_last
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is aten.adaptive_avg_pool2d.default and list(node.args[1]) == [1, 1] and value_of(node).dim() == 4:  # type: ignore[arg-type]
        return call(node, aten.mean.dim, node.args[0], [2, 3], True)
    if node.target is not aten.mean.dim or node.kwargs:
        return None
    if len(node.args) > 2 and node.args[2]:
        return _over_last(node)
    shape = reshape_argument(value_of(node).shape)
    if not shape:
        return None
    x: Any = node.args[0]
    kept = call(node, aten.mean.dim, x, node.args[1], True)
    kept.meta["ingot_value"] = node.name
    return call(node, aten.reshape.default, kept, shape)


def _over_last(node: Node) -> Node | None:
    """As in RMS norm: a linear with constant weights, which backends have."""
    x: Any = node.args[0]
    dims, rank = [d % value_of(x).dim() for d in node.args[1]], value_of(x).dim()  # type: ignore[union-attr,operator]
    if dims != [rank - 1] or has_symbols(value_of(x).shape[-1:]):
        return None
    return mean_over_last(node, x, value_of(x).shape[-1])


RULE = Rule("mean-keepdim", _rewrite)
