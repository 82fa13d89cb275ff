"""sum(x, dim) over a dynamic size -> bmm(ones, x), with the ones as linear(x, 0, bias 1)

A sum over a fixed size is a linear with constant ones (reduce_sum.py). Here their number is known at run time only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import has_symbols, same_constant, value_of
from ingot.core.symbolic_sizes import is_symbolic, reshape_argument, same_shape, same_size
from ingot.rewrite.reduce_sum import REASON
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.sum.dim_IntList or node.kwargs:
        return None
    x: Any = node.args[0]
    dims: Any = node.args[1]
    if len(dims or ()) != 1 or value_of(x).dtype != torch.float32:
        return None
    rows = _rows_to_sum(node, x, dims[0] % value_of(x).dim())
    return None if rows is None else _as_written(node, _sum_of_rows(node, rows))


def _rows_to_sum(node: Node, x: Node, dim: int) -> Node | None:
    """x as [batch, the summed size, one fixed size]."""
    shape = value_of(x).shape
    unit = [d for d, size in enumerate(shape) if d and d != dim and same_size(size, 1)]
    others = [d for d in range(len(shape)) if d not in (dim, *unit)]
    if not is_symbolic(shape[dim]) or dim == 0 or others[:1] != [0] or has_symbols(shape[d] for d in others[1:]):
        return None
    if len(shape) == 3 and len(others) + len(unit) == 2:
        return x if dim == 1 else in_float(node, REASON, aten.permute.default, x, [0, 2, 1])
    if len(others) > 2:
        return None
    flat = in_float(node, REASON, aten.squeeze.dims, x, unit) if unit else x
    if len(others) == 1:
        return in_float(node, REASON, aten.unsqueeze.default, flat, 2)
    return flat if dim < others[1] else in_float(node, REASON, aten.permute.default, flat, [0, 2, 1])


def _sum_of_rows(node: Node, rows: Node) -> Node:
    width, module = value_of(rows).shape[-1], node.graph.owning_module
    zeros = same_constant(module, torch.zeros(1, width), f"no_weight_{width}", node)  # type: ignore[arg-type]
    bias = same_constant(module, torch.ones(1), "one", node)  # type: ignore[arg-type]
    ones = in_float(node, REASON, aten.linear.default, rows, zeros, bias)
    return in_float(node, REASON, aten.bmm.default, in_float(node, REASON, aten.permute.default, ones, [0, 2, 1]), rows)


def _as_written(node: Node, total: Node) -> Node | None:
    shape = value_of(node).shape
    to = reshape_argument(shape)
    if same_shape(value_of(total).shape, shape):
        return total
    return None if to is None else in_float(node, REASON, aten.reshape.default, total, to)


RULE = Rule("dynamic-sum-as-matmul", _rewrite)
