"""flip(x), x[.., index], roll(x), repeat_interleave(x) -> linear(x with that axis last, one-hot rows)

The index is a constant. Exact in int8 too: a weight of 1 is 127 * (1 / 127). Of a large matrix, what is in order
becomes slices, and only the rest of it products: a reflection pad is cat([product, x, product]).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.data_movement import CANONICAL_OPS, as_index_select
from ingot.core.fx import (
    add_constant,
    call,
    calls,
    constant_of,
    has_symbols,
    is_float,
    replace,
    source_of,
    value_name,
    value_of,
)
from ingot.rewrite.constant_row_gather import gathered_by_row

aten = torch.ops.aten
SMALL = 1 << 16  # weights of one product for which nothing is cut
LARGE = 1 << 22  # weights of all products of an op
MAX_PARTS = 64
LEAST_RUN = 16  # elements in order that are worth a slice


@dataclass(frozen=True)
class ConstantGather:
    """`wanted`: the backend refuses the op."""

    wanted: Callable[[Node], bool]
    name: str = "gather-as-matmul"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in [n for n in calls(module) if n.target not in CANONICAL_OPS]:
            new = gathered(module, node) if self.wanted(node) else None
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                new.meta["ingot_value"] = value_name(node)
                replace(node, new)
        return places


def gathered(module: GraphModule, node: Node) -> Node | None:
    """The op as products and slices; None if it is no gather with a constant index."""
    if node.target is aten.index.Tensor and sum(i is not None for i in node.args[1]) > 1:  # type: ignore[union-attr]
        return _gathered_from_grid(module, node)
    if node.target is aten.gather.default:
        return gathered_by_row(module, node)
    found = as_index_select(node)
    return None if found is None else _selected(module, node, *found)


def _gathered_from_grid(module: GraphModule, node: Node) -> Node | None:
    """x[:, rows, columns] whose indices vary along axes of their own: first the rows, then the columns."""
    grid = index_grid(node)
    if not is_float(node) or has_symbols([*value_of(node).shape, *value_of(node.args[0]).shape]):  # type: ignore[arg-type]
        return None
    if grid is None:
        return _gathered_by_pair(module, node)
    x: Any = node.args[0]
    for axis in grid:
        x = None if x is None else _selected(module, node, x, axis.dim, axis.index)
    if x is None:
        return None
    first, shape = grid[0].dim, value_of(x).shape
    sizes, places = [n for a in grid for n in a.shape], [p for a in grid for p in a.places]
    apart = call(node, aten.reshape.default, x, [*shape[:first], *sizes, *shape[first + len(grid) :]])
    inner = [first + places.index(p) for p in sorted(places)]
    order = [*range(first), *inner, *range(first + len(sizes), value_of(apart).dim())]
    return call(node, aten.reshape.default, _permuted(node, apart, order), list(value_of(node).shape))


def _gathered_by_pair(module: GraphModule, node: Node) -> Node | None:
    """x[:, rows, columns] whose indices vary together, as in a triangle: one axis of pairs."""
    x: Any = node.args[0]
    given = _neighbours(node)
    if given is None:
        return None
    first, shape = given[0][0], list(value_of(x).shape)
    sizes = shape[first : first + len(given)]
    at = torch.broadcast_tensors(*(t % n for (_, t), n in zip(given, sizes, strict=True)))
    index = torch.stack([t.reshape(-1) for t in at]).mul(torch.tensor(_steps(sizes))[:, None]).sum(0).tolist()
    flat = call(node, aten.reshape.default, x, [*shape[:first], math.prod(sizes), *shape[first + len(given) :]])
    made = _selected(module, node, flat, first, index) if index else None
    return None if made is None else call(node, aten.reshape.default, made, list(value_of(node).shape))


def _steps(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]


def _neighbours(node: Node) -> list[tuple[int, torch.Tensor]] | None:
    """Constant integer indices of neighbouring dimensions."""
    indices: Any = node.args[1]
    given = [(d, constant_of(i)) for d, i in enumerate(indices) if i is not None]
    dims = [d for d, _ in given]
    if any(t is None or t.dtype == torch.bool for _, t in given) or dims != list(range(dims[0], dims[0] + len(dims))):
        return None
    return [(d, t) for d, t in given if t is not None]


@dataclass(frozen=True)
class _Axis:
    """The index of one dimension of x; `places` and `shape`: its own axes of the result, and their sizes."""

    dim: int
    index: list[int]
    places: list[int]
    shape: list[int]


def index_grid(node: Node) -> list[_Axis] | None:
    """The indices of neighbouring dimensions, if no axis of the result belongs to two of them."""
    size, given = value_of(node.args[0]).shape, _neighbours(node)  # type: ignore[arg-type]
    if given is None:
        return None
    rank = max(t.dim() for _, t in given)
    axes = [_axis(d, t.reshape([1] * (rank - t.dim()) + list(t.shape)), size[d]) for d, t in given]
    places = [p for a in axes for p in a.places]
    return axes if len(places) == len(set(places)) else None


def _axis(dim: int, index: torch.Tensor, size: int) -> _Axis:
    places = [a for a, n in enumerate(index.shape) if n != 1]
    return _Axis(dim, (index.reshape(-1) % size).tolist(), places, [index.shape[a] for a in places])


def _selected(module: GraphModule, node: Node, x: Node, dim: int, index: list[int]) -> Node | None:
    """x.index_select(dim, index)"""
    size = value_of(x).shape[dim]
    if index == list(range(size)):
        return x
    parts = _segments(index) if len(index) * size > SMALL else [index]
    if sum(len(p) * (max(p) - min(p) + 1) for p in parts if not _in_order(p)) > LARGE or len(parts) > MAX_PARTS:
        return None
    made = [_segment(module, node, x, dim, part) for part in parts]
    return made[0] if len(made) == 1 else call(node, aten.cat.default, made, dim)


def _segments(index: list[int]) -> list[list[int]]:
    """Cut into long runs in order and what is between them."""
    starts = [i for i in range(len(index)) if i == 0 or index[i] != index[i - 1] + 1]
    parts = list[list[int]]()
    for start, end in zip(starts, [*starts[1:], len(index)], strict=True):
        run = index[start:end]
        if parts and len(run) < LEAST_RUN and not _is_long_run(parts[-1]):
            parts[-1] = parts[-1] + run
        else:
            parts.append(run)
    return parts


def _is_long_run(part: list[int]) -> bool:
    return _in_order(part) and len(part) >= LEAST_RUN


def _in_order(part: list[int]) -> bool:
    return part == list(range(part[0], part[0] + len(part)))


def _segment(module: GraphModule, node: Node, x: Node, dim: int, part: list[int]) -> Node:
    low, high = min(part), max(part) + 1
    inside = call(node, aten.slice.Tensor, x, dim, low, high) if high - low < value_of(x).shape[dim] else x
    return inside if _in_order(part) else _product(module, node, inside, dim, [i - low for i in part])


def _product(module: GraphModule, node: Node, x: Node, dim: int, index: list[int]) -> Node:
    one_hot = torch.eye(value_of(x).shape[dim], dtype=value_of(x).dtype)[index]
    weight = add_constant(module, one_hot, f"{node.name}_rows", node)
    order = [i for i in range(value_of(x).dim()) if i != dim] + [dim]
    made = call(node, aten.linear.default, _permuted(node, x, order), weight)
    return _permuted(node, made, [order.index(i) for i in range(len(order))])


def _permuted(node: Node, x: Node, order: list[int]) -> Node:
    return x if order == sorted(order) else call(node, aten.permute.default, x, order)
