"""Arithmetic on factored values: the op on each part, with its axes in the order that the op needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.fx import Node

from ingot.core.fx import constant_of, value_of
from ingot.rewrite.factored_alignment import aligned, renamed
from ingot.rewrite.factored_movement import Values
from ingot.rewrite.factored_value import Factor, Factored, Unsupported, arranged, as_node, indices, joined, run

aten = torch.ops.aten
_LAST_AXIS_OPS = (aten.linear.default, aten.layer_norm.default, aten.rms_norm.default)


def _on_last_axis(node: Node, of: Values) -> Factored:
    """linear, layer_norm: other axes may stand in any order."""
    x, *rest = node.args
    last = value_of(x).dim() - 1  # type: ignore[arg-type]
    if any(constant_of(n) is None for n in node.all_input_nodes if n is not x):
        raise Unsupported
    value = joined(node, of(x), last)  # type: ignore[arg-type]
    axis = value.dims[last][0] if value.dims[last] else None
    if axis is None:
        raise Unsupported
    order = [*(f for f in value.axes if f is not axis), axis]
    made = {i: run(node, node.target, arranged(node, p, value.axes, order), *rest) for i, p in value.parts.items()}
    out = Factor(sympy.Integer(int(value_of(node).shape[-1])))
    dims = (*value.dims[:last], () if out.is_one else (out,))
    return Factored(dims, (*order[:-1], out), value.unrolled, made)


def _softmax(node: Node, of: Values) -> Factored:
    x, dim, *rest = node.args
    dim = dim % value_of(x).dim()  # type: ignore[operator,arg-type]
    value = joined(node, of(x), dim)  # type: ignore[arg-type]
    (axis,) = value.dims[dim]  # type: ignore[index]
    order = [*(f for f in value.axes if f is not axis), axis]
    parts = {
        i: run(node, aten.softmax.int, arranged(node, p, value.axes, order), len(order) - 1, *rest)
        for i, p in value.parts.items()
    }
    return replace(value, axes=tuple(order), parts=parts)


def is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def pointwise_parts(node: Node, of: Values) -> Factored:
    sources = list(dict.fromkeys(node.all_input_nodes))
    values = [of(n) for n in sources]
    if len(values) == 1:
        (value,) = values
        parts = {i: _applied(node, {sources[0]: p}) for i, p in value.parts.items()}
        return replace(value, parts=parts)
    values, dims = aligned(node, values, len(value_of(node).shape))
    factors = [f for d in dims for f in d]
    unrolled = tuple(f for f in factors if any(f in v.unrolled for v in values))
    axes = tuple(f for f in factors if f not in unrolled)
    parts = {}
    for at in indices(unrolled):
        operands = [arranged(node, v.part(at), v.axes, _wanted(v, axes)) for v in values]
        parts[tuple(at.values())] = _applied(node, dict(zip(sources, operands, strict=True)))
    return Factored(tuple(dims), axes, unrolled, parts)


def _wanted(value: Factored, axes: Sequence[Factor]) -> list[Factor | None]:
    """The axes of the result, as far as the operand has them; without leading ones."""
    found: list[Factor | None] = [f if f in value.axes else None for f in axes]
    while found and found[0] is None:
        found.pop(0)
    return found


def _applied(node: Node, operands: dict[Node, Any]) -> Any:
    args = torch.fx.map_arg(node.args, operands.get)
    nodes = torch.utils._pytree.tree_map(lambda a: as_node(node, a), args)
    return run(node, node.target, *nodes)


def _only(group: tuple[Factor, ...]) -> Factor:
    if len(group) != 1:
        raise Unsupported
    return group[0]


def _fresh(value: Factored, dim: int) -> tuple[Factored, Factor]:
    """The value with another factor of the same size for this dimension."""
    old = _only(value.dims[dim])
    new = Factor(old.size)
    return renamed(value, old, new), new


def _matmul(node: Node, of: Values) -> Factored:
    a, b = (of(n) for n in node.args)  # type: ignore[arg-type]
    if node.args[0] is node.args[1] or min(len(a.dims), len(b.dims)) < 2:
        raise Unsupported
    a, b = joined(node, joined(node, a, len(a.dims) - 1), len(a.dims) - 2), joined(node, b, len(b.dims) - 2)
    b = joined(node, b, len(b.dims) - 1)
    # Both may come from one value, as queries and keys do: their factors are told apart.
    a, rows = _fresh(a, -2)
    a, inner = _fresh(a, -1)
    b, columns = _fresh(renamed(b, _only(b.dims[-2]), inner), -1)
    batches = [replace(a, dims=a.dims[:-2]), replace(b, dims=b.dims[:-2])]
    batches, dims = aligned(node, batches, max(len(a.dims), len(b.dims)) - 2)
    factors = [f for d in dims for f in d]
    unrolled = tuple(f for f in factors if any(f in v.unrolled for v in batches))
    axes = [f for f in factors if f not in unrolled]
    if len(axes) > 1 or not all(f in v.axes for f in axes for v in batches):
        raise Unsupported
    batch = axes[0] if axes else None
    left, right = batches
    parts = {
        tuple(at.values()): run(
            node,
            aten.bmm.default,
            arranged(node, left.part(at), left.axes, [batch, rows, inner]),
            arranged(node, right.part(at), right.axes, [batch, inner, columns]),
        )
        for at in indices(unrolled)
    }
    one = Factor(sympy.Integer(1))
    return Factored((*dims, (rows,), (columns,)), (batch or one, rows, columns), unrolled, parts)


def _cat(node: Node, of: Values) -> Factored:
    sources, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    if len(set(sources)) != len(sources):  # type: ignore[arg-type]
        raise Unsupported
    rank = value_of(node).dim()
    dim = dim % rank  # type: ignore[operator]
    values = [joined(node, of(n), dim) for n in sources]  # type: ignore[union-attr,arg-type]
    along = [v.dims[dim][0] if v.dims[dim] else None for v in values]  # type: ignore[index]
    if any(f is None or not f.static for f in along):
        raise Unsupported
    rest = [replace(v, dims=(*v.dims[:dim], (), *v.dims[dim + 1 :])) for v in values]  # type: ignore[operator]
    rest, dims = aligned(node, rest, rank)
    factors = [f for d in dims for f in d]
    unrolled = tuple(f for f in factors if any(f in v.unrolled for v in rest))
    axes = tuple(f for f in factors if f not in unrolled)
    total = Factor(sympy.Add(*(f.size for f in along if f is not None)))
    parts = {
        tuple(at.values()): run(
            node,
            aten.cat.default,
            [arranged(node, v.part(at), v.axes, [*axes, f]) for v, f in zip(rest, along, strict=True)],
            len(axes),
        )
        for at in indices(unrolled)
    }
    return Factored((*dims[:dim], (total,), *dims[dim + 1 :]), (*axes, total), unrolled, parts)  # type: ignore[misc]


ARITHMETIC: dict[Any, Callable[[Node, Values], Factored]] = {
    **dict.fromkeys(_LAST_AXIS_OPS, _on_last_axis),
    aten.softmax.int: _softmax,
    aten.matmul.default: _matmul,
    aten.cat.default: _cat,
}
