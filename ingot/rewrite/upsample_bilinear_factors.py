"""upsample_bilinear2d(x, factors that are not the ratio of the sizes) -> linear along the width, then the height"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def factors_are_ratios(node: Node) -> bool:
    """Backends resize by the ratio of the sizes; torch by the factors where they are given, unless align_corners."""
    if len(node.args) < 4 or not node.args[3] or node.args[2]:
        return True
    x, _, _, factors = cast(tuple[Any, ...], node.args)
    before, after = value_of(x).shape[2:], value_of(node).shape[2:]
    if has_symbols(before) or has_symbols(after):
        return False
    return all(math.isclose(b * f, a) for b, f, a in zip(before, factors, after, strict=True))


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.upsample_bilinear2d.vec or factors_are_ratios(node):
        return None
    x, _, _, (tall, wide) = cast(tuple[Any, ...], node.args)
    small, big = list(value_of(x).shape), list(value_of(node).shape)
    if has_symbols(small + big):
        return None
    rows = _resized(node, x, _weights(small[3], big[3], float(wide)))
    columns = _resized(node, _transposed(node, rows), _weights(small[2], big[2], float(tall)))
    return _transposed(node, columns)


def _resized(node: Node, x: Node, weights: torch.Tensor) -> Node:
    module: Any = node.graph.owning_module
    return call(node, aten.linear.default, x, add_constant(module, weights, f"{node.name}_weights", node))


def _transposed(node: Node, x: Node) -> Node:
    return call(node, aten.permute.default, x, [0, 1, 3, 2])


def _weights(size: int, made: int, factor: float) -> torch.Tensor:
    """Row i holds what output i takes of each input: two neighbours of (i + 1/2) / factor - 1/2."""
    at = ((torch.arange(made, dtype=torch.float64) + 0.5) / factor - 0.5).clamp(0, size - 1)
    low = at.floor().long()
    part = (at - low).unsqueeze(1)
    one = torch.eye(size, dtype=torch.float64)
    return (one[low] * (1 - part) + one[(low + 1).clamp(max=size - 1)] * part).float()


RULE = Rule("bilinear-factors-as-linear", _rewrite)
