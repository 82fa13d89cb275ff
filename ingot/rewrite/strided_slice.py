"""x[k::s] -> reshape(reshape(x[k : k + n * s], [n, s])[:, 0]), padded to n * s where x ends before

Backends only slice with step 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.slice.Tensor or len(node.args) < 5 or node.args[4] == 1:
        return None
    given: tuple[Any, ...] = node.args
    x, dim, start, _, step = given
    shape, dim = list(value_of(x).shape), dim % value_of(x).dim()
    count = value_of(node).shape[dim]
    if has_symbols(shape) or not count:
        return None
    first = start or 0
    first = max(first + shape[dim], 0) if first < 0 else first
    inside = first % step if _reaches_the_end(shape[dim], first, count, step) else None
    whole = x if inside is not None else _cut(node, x, dim, first, count * step)
    return _every(node, whole, dim, inside or 0, step)


def _reaches_the_end(size: int, first: int, count: int, step: int) -> bool:
    """All of x can be cut into steps: no slice before."""
    return size == count * step and first < step


def _cut(node: Node, x: Node, dim: int, first: int, width: int) -> Node:
    size = value_of(x).shape[dim]
    end = min(first + width, size)
    if (first, end) != (0, size):
        x = call(node, aten.slice.Tensor, x, dim, first, end)
    missing = width - (end - first)
    pads = [0, 0] * (value_of(x).dim() - 1 - dim) + [0, missing]
    return call(node, aten.constant_pad_nd.default, x, pads) if missing else x


def _every(node: Node, x: Node, dim: int, offset: int, step: int) -> Node:
    shape = list(value_of(x).shape)
    apart = call(node, aten.reshape.default, x, [*shape[:dim], shape[dim] // step, step, *shape[dim + 1 :]])
    part = call(node, aten.slice.Tensor, apart, dim + 1, offset, offset + 1)
    return call(node, aten.reshape.default, part, list(value_of(node).shape))


RULE = Rule("strided-slice-as-reshape", _rewrite)
