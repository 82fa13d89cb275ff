"""matmul(x, W) -> linear(x, W.T) and addmm(b, x, W) -> linear(x, W.T, b) for a constant W and a constant vector b

matmul(a, b) -> reshape(bmm(reshape(a), reshape(b))) otherwise. Also mv and dot.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, is_float, value_of
from ingot.core.symbolic_sizes import reshape_argument, same_shape
from ingot.rewrite.rule import Rule

aten = torch.ops.aten
_PRODUCTS = (aten.matmul.default, aten.mm.default, aten.mv.default, aten.dot.default)


def _rewrite(node: Node) -> Node | None:
    if node.target is aten.addmm.default and is_float(node):
        return _affine(node)
    if node.target not in _PRODUCTS or not is_float(node):
        return None
    a, b = node.args
    return _by_constant(node, a, b) or _batched(node, a, b)


def _affine(node: Node) -> Node | None:
    """GPT-2 computes its linears so."""
    bias, a, b = node.args
    vector = constant_of(bias) if isinstance(bias, Node) else None
    if node.kwargs or vector is None or list(vector.shape) != [value_of(node).shape[-1]]:
        return None
    return _by_constant(node, a, b, bias)


def _by_constant(node: Node, a: Any, b: Any, *bias: Any) -> Node | None:
    weight = constant_of(b)
    if weight is None or weight.dim() != 2 or value_of(a).dim() < 2:
        return None
    transposed = add_constant(node.graph.owning_module, weight.detach().t().contiguous(), f"{node.name}_weight", node)  # type: ignore[arg-type]
    return call(node, aten.linear.default, a, transposed, *bias)


def _batched(node: Node, a: Any, b: Any) -> Node | None:
    """Equal batch dimensions become one; with a two-dimensional b, the batch of a becomes rows. Also for vectors."""
    x, y = list(value_of(a).shape), list(value_of(b).shape)
    x, y = [1, *x] if len(x) == 1 else x, [*y, 1] if len(y) == 1 else y
    if not same_shape(x[:-2], y[:-2]):
        return _rows(node, a, b, x, y) if len(y) == 2 else None
    batch = math.prod(x[:-2])
    return _product(node, a, b, [batch, *x[-2:]], [batch, *y[-2:]])


def _rows(node: Node, a: Any, b: Any, x: list[Any], y: list[Any]) -> Node | None:
    return _product(node, a, b, [1, math.prod(x[:-1]), x[-1]], [1, *y])


def _product(node: Node, a: Any, b: Any, left: list[Any], right: list[Any]) -> Node | None:
    """None if a reshape has two symbolic sizes."""
    out = list(value_of(node).shape)
    changed = [to for x, to in ((a, left), (b, right)) if not same_shape(value_of(x).shape, to)]
    changed += [out] if len(out) != 3 else []
    if any(reshape_argument(to) is None for to in changed):
        return None
    made = call(node, aten.bmm.default, _shaped(node, a, left), _shaped(node, b, right))
    return _shaped(node, made, out)


def _shaped(node: Node, x: Node, shape: list[Any]) -> Node:
    same = same_shape(value_of(x).shape, shape)
    return x if same else call(node, aten.reshape.default, x, reshape_argument(shape))


RULE = Rule("matmul-as-bmm", _rewrite)
