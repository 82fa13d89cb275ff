"""Movement of factored values: reshape, permute, select, slice, expand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.fx import Node

from ingot.core.fx import value_of
from ingot.rewrite.factored_value import MAX_PARTS, Factor, Factored, Unsupported, moved, reshaped

aten = torch.ops.aten
Values = Callable[[Node], Factored]
SHAPE_OPS = (
    aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim, aten.flatten.using_ints,
    aten.unflatten.int, aten.squeeze.default,
)  # fmt: skip  # views that keep the order of elements: their result is their shape


def _reshape(node: Node, of: Values) -> Factored:
    return reshaped(node, of(node.args[0]), value_of(node).shape)  # type: ignore[arg-type]


def _permute(node: Node, of: Values) -> Factored:
    value = of(node.args[0])  # type: ignore[arg-type]
    return replace(value, dims=tuple(value.dims[d] for d in node.args[1]))  # type: ignore[union-attr,index]


def _select(node: Node, of: Values) -> Factored:
    given: tuple[Any, ...] = node.args
    x, dim, index = given
    dim %= value_of(x).dim()
    value = _sliced(node, of(x), dim, index, index + 1)
    return replace(value, dims=(*value.dims[:dim], *value.dims[dim + 1 :]))


def _slice(node: Node, of: Values) -> Factored:
    given: tuple[Any, ...] = (*node.args, *(None, 0, None, None, 1)[len(node.args) :])
    x, dim, start, end, step = given
    if step != 1 or not all(isinstance(v, int) or v is None for v in (start, end)):
        raise Unsupported
    value = of(x)
    dim %= len(value.dims)
    size = _static_size(value.dims[dim])
    first, last, _ = slice(start, end).indices(size)
    if last <= first:
        raise Unsupported
    return _sliced(node, value, dim, first, last)


def _static_size(group: Sequence[Factor]) -> int:
    if len(group) != 1 or not group[0].static:
        raise Unsupported
    return int(group[0].size)


def _sliced(node: Node, value: Factored, dim: int, start: int, end: int) -> Factored:
    size, factor = _static_size(value.dims[dim]), value.dims[dim][0]
    start, end = start % size, end if end > 0 else size
    less = Factor(sympy.Integer(end - start))
    dims = (*value.dims[:dim], (less,) if end - start > 1 else (), *value.dims[dim + 1 :])
    if factor in value.axes:
        axis = value.axes.index(factor)
        parts = {i: moved(node, aten.slice.Tensor, p, axis, start, end) for i, p in value.parts.items()}
        return Factored(dims, tuple(less if f is factor else f for f in value.axes), value.unrolled, parts)
    place = value.unrolled.index(factor)
    chosen = {i: p for i, p in value.parts.items() if start <= i[place] < end}
    if end - start == 1:
        unrolled = (*value.unrolled[:place], *value.unrolled[place + 1 :])
        return Factored(dims, value.axes, unrolled, {(*i[:place], *i[place + 1 :]): p for i, p in chosen.items()})
    kept = {(*i[:place], i[place] - start, *i[place + 1 :]): p for i, p in chosen.items()}
    return Factored(dims, value.axes, tuple(less if f is factor else f for f in value.unrolled), kept)


def _expand(node: Node, of: Values) -> Factored:
    """Along a static dimension: the same part for each index."""
    value = of(node.args[0])  # type: ignore[arg-type]
    shape = value_of(node).shape
    dims = [(), *value.dims][-len(shape) :] if len(value.dims) < len(shape) else list(value.dims)
    if len(dims) != len(shape):
        raise Unsupported
    parts, unrolled = value.parts, value.unrolled
    for d, size in enumerate(shape):
        if dims[d] or size == 1:
            continue
        if not isinstance(size, int) or len(parts) * size > MAX_PARTS:
            raise Unsupported
        new = Factor(sympy.Integer(size))
        dims[d], unrolled = (new,), (*unrolled, new)
        parts = {(*i, k): p for i, p in parts.items() for k in range(size)}
    return Factored(tuple(dims), value.axes, unrolled, parts)


MOVEMENT: dict[Any, Callable[[Node, Values], Factored]] = {
    **dict.fromkeys(SHAPE_OPS, _reshape),
    aten.permute.default: _permute,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.expand.default: _expand,
}
