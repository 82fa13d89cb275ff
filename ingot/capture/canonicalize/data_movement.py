"""Canonical data movement, derived by tracing numbered elements.

f(x) -> reshape(x), reshape(x[a:b]), cat([x[c:], x[:c]])
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of, operands
from ingot.capture.op_semantics.probe import structure_key
from ingot.capture.op_semantics.sizes import concrete, shape_of
from ingot.core.fx import call, calls, constant_of, has_symbols, is_float, replace, value_of
from ingot.core.shape_cache import ShapeCache
from ingot.core.symbolic_sizes import element_count, is_symbolic, reshape_argument, same_shape, symbolic_count

aten = torch.ops.aten
CANONICAL_OPS = (aten.reshape.default, aten.slice.Tensor, aten.cat.default, aten.permute.default)
MAX_SLICES = 4  # beyond this a gather kernel is better than a cat of slices
_has_form = ShapeCache[bool]()


def canonicalize_movement(module: GraphModule) -> int:
    """squeeze, flatten, select, split, unbind, roll … -> reshape, slice and a cat of at most MAX_SLICES slices."""
    changed = sum(_rewrite(node) or _rewrite_symbolic(node) for node in calls(module))
    return changed + _merge_reshapes(module)


def _rewrite(node: Node) -> bool:
    if node.target in CANONICAL_OPS or not is_float(node) or has_symbols(value_of(node).shape):
        return False
    x = _moved_operand(node)
    if x is None:
        return False
    new = _new_form(node, x)
    if new is None:
        return False
    replace(node, new)
    return True


def _new_form(node: Node, x: Node) -> Node | None:
    """An op without a canonical form is asked once: it stays in the graph, and every rewrite asks again."""
    op: Any = node.args[0] if node.target is operator.getitem else node
    item = None if op is node else node.args[1]
    made: list[Node | None] = []

    def find() -> bool:
        made.append(_canonical_form(node, x, _positions(node, x)))
        return made[0] is not None

    if not _has_form.get((structure_key(op, constant_of), operands(op).index(x), item), find):
        return None
    return made[0] if made else _canonical_form(node, x, _positions(node, x))


def _rewrite_symbolic(node: Node) -> bool:
    """A view of a value with symbolic sizes: no size has to be computed for reshape(x, [-1, 4]) or a static slice."""
    view: Any = node.args[0] if node.target is operator.getitem else node
    if not isinstance(view, Node) or not _is_view(view) or node.target in (aten.permute.default, aten.slice.Tensor):
        return False
    x: Any = view.args[0]
    before, after = value_of(x), value_of(node)
    if not isinstance(after, torch.Tensor) or before.dtype != after.dtype or not symbolic_count(before.shape):
        return False
    new = _symbolic_form(node, x, _example_positions(node, view, shape_of(before)))
    if new is None or (new is not node and new.target is node.target and new.args == node.args):
        return False
    replace(node, new)
    return True


def _is_view(node: Node) -> bool:
    return node.target is aten.reshape.default or bool(getattr(node.target, "is_view", False))


def _example_positions(node: Node, view: Node, shape: tuple[int, ...]) -> torch.Tensor:
    """Which elements a view has, at the sizes of the example. A view depends on sizes in no other way."""
    numbered = torch.arange(math.prod(shape)).reshape(shape)
    args = torch.fx.map_arg(view.args[1:], lambda n: concrete(value_of(n)))
    out = view.target(numbered, *args)  # type: ignore[operator]
    return out[node.args[1]] if view is not node else out


def _symbolic_form(node: Node, x: Node, positions: torch.Tensor) -> Node | None:
    shape, to = value_of(x).shape, value_of(node).shape
    numbered = torch.arange(math.prod(shape_of(value_of(x)))).reshape(shape_of(value_of(x)))
    argument = reshape_argument(to)
    if torch.equal(positions.reshape(-1), numbered.reshape(-1)) and element_count(shape) == element_count(to):
        return None if argument is None else call(node, aten.reshape.default, x, argument)
    found = _as_slice(numbered, positions.reshape(-1))
    if found is None or is_symbolic(shape[found[0]]):
        return None
    part = [*shape[: found[0]], found[2] - found[1], *shape[found[0] + 1 :]]
    if same_shape(part, to):
        return call(node, aten.slice.Tensor, x, *found)
    if argument is not None and element_count(part) == element_count(to):
        return call(node, aten.reshape.default, call(node, aten.slice.Tensor, x, *found), argument)
    dim, start, _ = found
    return call(node, aten.select.int, x, dim, start) if same_shape([*part[:dim], *part[dim + 1 :]], to) else None


def _moved_operand(node: Node) -> Node | None:
    """The one operand whose elements the node moves, with no other values mixed in. Looks through a getitem."""
    op: Any = node.args[0] if node.target is operator.getitem else node
    moved = [n for n in operands(op) if constant_of(n) is None] if isinstance(op, Node) else []
    if len(moved) != 1 or op.op != "call_function" or not is_float(moved[0]):
        return None
    effect = effect_of(op, constant_of)
    plain = effect.kind is Kind.MOVES and not effect.constants and len(effect.carriers) == 1
    plain = plain and operands(op)[effect.carriers[0]] is moved[0]  # copy(x, constant) moves the constant
    same_type = value_of(moved[0]).dtype == value_of(node).dtype  # a dtype conversion also keeps the order
    return moved[0] if plain and same_type and not has_symbols(value_of(moved[0]).shape) else None


def _positions(node: Node, x: Node) -> torch.Tensor:
    """For each output position the index of the element of x, in row-major order."""
    shape = tuple(value_of(x).shape)
    numbered = torch.arange(value_of(x).numel(), dtype=torch.float64).reshape(shape)
    op: Any = node.args[0] if node.target is operator.getitem else node
    args, kwargs = torch.fx.map_arg((op.args, op.kwargs), lambda n: numbered if n is x else _as_double(constant_of(n)))
    out = op.target(*args, **kwargs)
    out = out[node.args[1]] if op is not node else out
    return out.reshape(-1).long()


def _as_double(constant: torch.Tensor | None) -> torch.Tensor | None:
    """Beside numbered elements in double: an op such as select_scatter takes one dtype."""
    return constant.double() if constant is not None and constant.is_floating_point() else constant


def _canonical_form(node: Node, x: Node, positions: torch.Tensor) -> Node | None:
    shape, to = list(value_of(x).shape), list(value_of(node).shape)
    numbered_flat = torch.arange(value_of(x).numel())
    if torch.equal(positions, numbered_flat):
        return call(node, aten.reshape.default, x, to)
    slice_args = _as_slice(numbered_flat.reshape(shape), positions)
    if slice_args is None:
        return _as_cat_of_slices(node, x, numbered_flat.reshape(shape), positions.reshape(to))
    part = call(node, aten.slice.Tensor, x, *slice_args)
    return part if list(value_of(part).shape) == to else call(node, aten.reshape.default, part, to)


def _as_cat_of_slices(node: Node, x: Node, numbered: torch.Tensor, positions: torch.Tensor) -> Node | None:
    """cat of a few slices along one dimension: a roll, an index_select with constant indices."""
    for dim, index in _selections(numbered, positions):
        runs = _runs(index)
        if len(runs) <= MAX_SLICES:
            return call(node, aten.cat.default, [call(node, aten.slice.Tensor, x, dim, *run) for run in runs], dim)
    return None


def as_index_select(node: Node) -> tuple[Node, int, list[int]] | None:
    """(x, dim, index) of an op equivalent to index_select: flip, roll, gather …"""
    x = _moved_operand(node) if is_float(node) and not has_symbols(value_of(node).shape) else None
    if x is None:
        return None
    numbered = torch.arange(value_of(x).numel()).reshape(tuple(value_of(x).shape))
    found = next(_selections(numbered, _positions(node, x).reshape(tuple(value_of(node).shape))), None)
    return None if found is None else (x, *found)


def _selections(numbered: torch.Tensor, positions: torch.Tensor) -> Iterator[tuple[int, list[int]]]:
    """The dimensions along which whole slices were selected, with their indices."""
    if positions.dim() != numbered.dim() or not positions.numel():
        return
    for dim, size in enumerate(numbered.shape):
        index = _first_of_each_slice(positions, dim) // numbered.stride(dim) % size
        if _is_selection(numbered, positions, dim, index):
            yield dim, index.tolist()


def _first_of_each_slice(positions: torch.Tensor, dim: int) -> torch.Tensor:
    """The first element of each slice along dim."""
    return positions.transpose(0, dim).reshape(positions.shape[dim], -1)[:, 0]


def _is_selection(numbered: torch.Tensor, positions: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    chosen = numbered.index_select(dim, index)
    return chosen.shape == positions.shape and torch.equal(chosen, positions)


def _runs(index: list[int]) -> list[tuple[int, int]]:
    """[3, 4, 0, 1, 2] -> [(3, 5), (0, 3)]"""
    starts = [i for i in range(len(index)) if i == 0 or index[i] != index[i - 1] + 1]
    ends = [*starts[1:], len(index)]
    return [(index[a], index[b - 1] + 1) for a, b in zip(starts, ends, strict=True)]


def _as_slice(numbered: torch.Tensor, positions: torch.Tensor) -> tuple[int, int, int] | None:
    """(dim, start, end) if the positions are one contiguous slice along one dimension."""
    for dim, size in enumerate(numbered.shape):
        length, rest = divmod(positions.numel() * size, numbered.numel())
        if rest or not 0 < length < size:
            continue
        start = int(positions[0]) // numbered.stride(dim) % size
        if start + length <= size and torch.equal(numbered.narrow(dim, start, length).reshape(-1), positions):
            return dim, start, start + length
    return None


def _merge_reshapes(module: GraphModule) -> int:
    """reshape(reshape(x, a), b) -> reshape(x, b), or x if it has that shape"""
    merged = 0
    for node in calls(module):
        if not (_is_reshape(node) and _is_reshape(node.args[0])):  # checked again: the inner one may have been erased
            continue
        merged += 1
        node.args = (node.args[0].args[0], *node.args[1:])  # type: ignore[union-attr]
        if same_shape(value_of(node.args[0]).shape, value_of(node).shape):  # type: ignore[arg-type]
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    return merged


def _is_reshape(arg: Any) -> bool:
    return isinstance(arg, Node) and arg.target is aten.reshape.default
