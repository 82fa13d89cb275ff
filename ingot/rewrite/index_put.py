"""index_put(base, [.., index, ..], new), slice_scatter(base, new, dim, start, ..) -> where(written, onehot @ new, base)

Vulkan has no shader that writes into a part of a tensor. `written` compares all positions with the index; a matmul with
a one-hot matrix moves several new rows to their positions. An index that occurs twice is undefined, as in torch.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, has_symbols, same_constant, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    found = _put(node) or _slice(node)
    if found is None or has_symbols(value_of(node).shape):
        return None
    base, new, dim, places, wraps = found
    hit = _one_hot(node, places, value_of(node).shape[dim], wraps)
    many = value_of(places).shape[0]
    return (_write_rows if has_symbols([many]) or many > 1 else _write_row)(node, base, new, dim, hit)


def _put(node: Node) -> Any:
    """One integer index; it may hold negative positions."""
    if node.target is not aten.index_put.default or (len(node.args) > 3 and node.args[3]):
        return None
    base, indices, new = node.args[:3]
    given = [(d, i) for d, i in enumerate(indices) if i is not None]  # type: ignore[union-attr,arg-type,var-annotated]
    dim, places = given[0]
    if len(given) > 1 or value_of(places).dim() != 1 or value_of(places).dtype == torch.bool:
        return None
    return base, new, dim, places, True


def _slice(node: Node) -> Any:
    """`start` is a number, or a number read from a tensor: that tensor is the index."""
    if node.target is not aten.slice_scatter.default:
        return None
    given: list[Any] = [*node.args, *[None, None, 0, None, None, 1][len(node.args) :]]
    base, new, dim, start, _, step = given
    dim, many = dim % value_of(node).dim(), value_of(new).shape[dim]
    if step != 1 or has_symbols([many]):
        return None
    places = _index_from(node, start or 0, many, value_of(node).shape[dim])
    return None if places is None else (base, new, dim, places, False)


def _index_from(node: Node, start: Any, many: int, size: int) -> Node | None:
    module: Any = node.graph.owning_module
    if isinstance(start, int):
        return add_constant(module, torch.arange(many) + (start + size if start < 0 else start), "places", node)
    read, more = _read(start)
    if read is None:
        return None
    first, upto = call(node, aten.reshape.default, read, [1]), torch.arange(more, more + many)
    return call(node, aten.add.Tensor, first, same_constant(module, upto, f"places_from_{more}_{many}", node))


def _read(number: Node) -> tuple[Node | None, int]:
    """The tensor that a number is read from by item(), and the offset added to it."""
    if number.target is operator.add and isinstance(number.args[0], Node) and isinstance(number.args[1], int):
        read, more = _read(number.args[0])
        return read, more + number.args[1]
    return (number.args[0], 0) if number.target is aten.item.default else (None, 0)  # type: ignore[return-value]


def _one_hot(node: Node, places: Node, size: int, wraps: bool) -> Node:
    """A boolean matrix, size x index: which position is written by which new row."""
    module: Any = node.graph.owning_module
    row, column = call(node, aten.reshape.default, places, [1, -1]), torch.arange(size)[:, None]
    dtype = value_of(places).dtype
    hit = call(node, aten.eq.Tensor, same_constant(module, column.to(dtype), f"rows_{size}", node), row)
    if not wraps:
        return hit
    from_end = same_constant(module, (column - size).to(dtype), f"rows_from_the_end_{size}", node)
    return call(node, aten.logical_or.default, hit, call(node, aten.eq.Tensor, from_end, row))


def _write_row(node: Node, base: Node, new: Node, dim: int, hit: Node) -> Node:
    return call(node, aten.where.self, _along(node, hit, dim), new, base)


def _along(node: Node, column: Node, dim: int) -> Node:
    """A column, reshaped to broadcast along `dim` of the base."""
    after = value_of(node).dim() - dim - 1
    return call(node, aten.reshape.default, column, [value_of(node).shape[dim], *[1] * after])


def _write_rows(node: Node, base: Node, new: Node, dim: int, hit: Node) -> Node | None:
    shape, sizes = list(value_of(node).shape), value_of(new).shape
    if len(sizes) != len(shape) or any(a != b for d, (a, b) in enumerate(zip(shape, sizes, strict=True)) if d != dim):
        return None
    module: Any = node.graph.owning_module
    one, zero, half = (same_constant(module, torch.full((1, 1), n), f"number_{n}", node) for n in (1.0, 0.0, 0.5))
    ones = call(node, aten.where.self, hit, one, zero)
    rows = call(node, aten.reshape.default, new, [prod(shape[:dim]), -1, prod(shape[dim + 1 :])])
    spread = call(node, aten.reshape.default, call(node, aten.matmul.default, ones, rows), shape)
    written = call(node, aten.gt.Tensor, call(node, aten.sum.dim_IntList, ones, [1], True), half)
    return call(node, aten.where.self, _along(node, written, dim), spread, base)


RULE = Rule("index-put-as-where", _rewrite)
