"""sum(x, dims) -> reshape(linear(permute(x), ones))
linalg_vector_norm(x, 2, dims) -> sqrt(sum(x * x, dims))

Used for pooling over tokens and for vector norms. Backends have linear, but not this sum.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, same_constant, value_of
from ingot.core.symbolic_sizes import reshape_argument, same_shape
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
_SUMS = (aten.sum.default, aten.sum.dim_IntList)
REASON = "part of a sum: a sum of many terms needs float"


def _rewrite(node: Node) -> Node | None:
    dims = summed_dims(node)
    if dims is None:
        return None
    x = node.args[0]
    if node.target in _SUMS:
        return _sum_as_linear(node, x, dims)
    square = in_float(node, REASON, aten.mul.Tensor, x, x)
    return in_float(node, REASON, aten.sqrt.default, _sum_as_linear(node, square, dims))


def summed_dims(node: Node) -> list[int] | None:
    """The dimensions of a sum, or of a vector norm of order 2 (all, if none is given). None if it is neither."""
    if node.kwargs or node.target not in (*_SUMS, aten.linalg_vector_norm.default):
        return None
    given: tuple[Any, ...] = node.args
    x, *rest = given
    order = 2 if node.target in _SUMS else rest.pop(0) if rest else 2
    shape = value_of(x).shape
    dims = list(rest[0]) if rest and rest[0] else list(range(len(shape)))
    fixed = value_of(x).dtype == torch.float32 and not has_symbols(shape[d] for d in dims)
    return dims if fixed and order == 2 and dims and _has_one_form(node, len(dims), shape) else None


def _has_one_form(node: Node, count: int, shape: Any) -> bool:
    """Without a reshape of two dynamic sizes."""
    kept = count == 1 and value_of(node).dim() == len(shape)
    return not has_symbols(shape) or kept or (count == 1 and reshape_argument(value_of(node).shape) is not None)


def _sum_as_linear(node: Node, x: Any, dims: list[int]) -> Node:
    shape, rank = value_of(x).shape, value_of(x).dim()
    last = sorted(d % rank for d in dims)
    kept = [d for d in range(rank) if d not in last]
    if [*kept, *last] != list(range(rank)):
        x = call(node, aten.permute.default, x, [*kept, *last])
    width = math.prod(shape[d] for d in last)
    if len(last) > 1:
        x = call(node, aten.reshape.default, x, [*(shape[d] for d in kept), width])
    ones = same_constant(node.graph.owning_module, torch.ones(1, width), f"sum_of_{width}", node)  # type: ignore[arg-type]
    total = in_float(node, REASON, aten.linear.default, x, ones)
    result = value_of(node).shape
    if has_symbols(result) and same_shape(value_of(total).shape, result):
        return total
    return call(node, aten.reshape.default, total, reshape_argument(result))


RULE = Rule("sum-as-matmul", _rewrite)
