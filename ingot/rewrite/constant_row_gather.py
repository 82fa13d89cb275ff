"""gather(x, dim, index) -> bmm(x, one-hot columns), a matrix for each row whose indices are its own

The index is a constant, as in attention with relative positions. Exact in int8 too: a weight of 1 is 127 * (1 / 127).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, constant_of, has_symbols, is_float, value_of

aten = torch.ops.aten
_MOST_WEIGHTS = 1 << 22


def gathered_by_row(module: GraphModule, node: Node) -> Node | None:
    """None unless the index is constant and as large as x in every other dimension."""
    x, dim, at = _operands(node)
    index = constant_of(at) if isinstance(at, Node) else None
    if index is None or not index.numel() or not is_float(node) or has_symbols(value_of(x).shape):
        return None
    if any(index.shape[d] != n for d, n in enumerate(value_of(x).shape) if d != dim):
        return None
    return _as_product(module, node, _within(node, x, dim, index), dim, index - index.min())


def _operands(node: Node) -> tuple[Any, int, Any]:
    x, dim, at = node.args[:3]
    return x, dim % max(value_of(x).dim(), 1), at  # type: ignore[operator,arg-type]


def _within(node: Node, x: Node, dim: int, index: Tensor) -> Node:
    """The part of x between the least index and the largest."""
    low, high = int(index.min()), int(index.max()) + 1
    whole = (low, high) == (0, value_of(x).shape[dim])
    return x if whole else call(node, aten.slice.Tensor, x, dim, low, high)


def _as_product(module: GraphModule, node: Node, x: Node, dim: int, index: Tensor) -> Node | None:
    alike = [d for d in range(index.dim()) if d != dim and _repeats(index, d)]
    own = [d for d in range(index.dim()) if d != dim and d not in alike]
    order, size = [*own, *alike, dim], value_of(x).shape
    rows = index.permute(order)[(slice(None),) * len(own) + (0,) * len(alike)].reshape(-1, index.shape[dim])
    if rows.numel() * size[dim] > _MOST_WEIGHTS:
        return None
    one_hot = torch.nn.functional.one_hot(rows, size[dim]).mT.to(value_of(x).dtype).contiguous()
    weight = add_constant(module, one_hot, f"{node.name}_columns", node)
    flat = [rows.shape[0], math.prod(size[d] for d in alike), size[dim]]
    made = call(node, aten.bmm.default, _shaped(node, _permuted(node, x, order), flat), weight)
    apart = _shaped(node, made, [index.shape[d] for d in order])
    return _permuted(node, apart, [order.index(d) for d in range(index.dim())])


def _repeats(index: Tensor, d: int) -> bool:
    return bool(torch.equal(index, index.narrow(d, 0, 1).expand_as(index)))


def _shaped(node: Node, x: Node, shape: Sequence[int]) -> Node:
    return x if list(value_of(x).shape) == list(shape) else call(node, aten.reshape.default, x, list(shape))


def _permuted(node: Node, x: Node, order: list[int]) -> Node:
    return x if order == sorted(order) else call(node, aten.permute.default, x, order)
