"""A tensor as several smaller ones, with each of its dimensions as a product of factors.

A kernel that infers one size of a reshape cannot split [b, l, 64] into [b, l, 4, 16]: b and l are both unknown. Four
slices [b, l, 16] need no reshape. A factor is either an axis of every part or *unrolled*: one part for each index.
Reshape and permute then only regroup factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map

from ingot.core.fx import add_constant, call, constant_of, value_name, value_of
from ingot.core.symbolic_sizes import expression

aten = torch.ops.aten
MAX_PARTS = 64  # more ops than that for one op of the model are slower than the host


class Unsupported(Exception):
    """The value cannot be expressed by parts; the op is kept as it is."""


@dataclass(frozen=True, eq=False)
class Factor:
    size: sympy.Expr

    @property
    def static(self) -> bool:
        return bool(self.size.is_Integer)

    @property
    def is_one(self) -> bool:
        return bool(self.size == 1)


Part = Node | torch.Tensor  # a tensor: a constant, not yet in the graph
Index = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Factored:
    """`dims`: the factors of each dimension, outermost first, without ones. `axes`: those of every part, in order."""

    dims: tuple[tuple[Factor, ...], ...]
    axes: tuple[Factor, ...]
    unrolled: tuple[Factor, ...]
    parts: dict[Index, Part]

    @property
    def is_plain(self) -> bool:
        """One part with the shape of the value."""
        singles = [d[0] if d else None for d in self.dims if len(d) < 2]
        if self.unrolled or len(singles) != len(self.dims) or len(self.axes) != len(self.dims):
            return False
        return all(a is s or (s is None and a.is_one) for a, s in zip(self.axes, singles, strict=True))

    def part(self, at: dict[Factor, int]) -> Part:
        return self.parts[tuple(at[f] for f in self.unrolled)]


def indices(factors: Sequence[Factor]) -> Iterator[dict[Factor, int]]:
    sizes = [int(f.size) for f in factors]
    if sympy.prod(sizes) > MAX_PARTS:
        raise Unsupported
    for index in product(*map(range, sizes)):
        yield dict(zip(factors, index, strict=True))


def whole(node: Node) -> Factored:
    """A value as one part."""
    constant = constant_of(node)
    axes = tuple(Factor(expression(s)) for s in value_of(node).shape)
    dims = tuple(() if a.is_one else (a,) for a in axes)
    return Factored(dims, axes, (), {(): node if constant is None else constant.detach()})


def run(at: Node, target: Any, *args: Any) -> Part:
    """`target(*args)` as a new node before `at`, as a part of its value; on constants alone, the result."""
    return _emit(at, at, target, *args)


def moved(at: Node, target: Any, *args: Any) -> Part:
    """The same for an op that moves elements of its operand: they keep the name of their value."""
    source = next((a for a in tree_leaves(args) if isinstance(a, Node)), at)
    return _emit(at, source, target, *args)


def _emit(at: Node, like: Node, target: Any, *args: Any) -> Part:
    tensors = [a for a in tree_leaves(args) if isinstance(a, (Node, torch.Tensor))]
    if all(isinstance(t, torch.Tensor) for t in tensors):
        with torch.no_grad():
            found: torch.Tensor = target(*args)
        return found
    made = call(at, target, *tree_map(lambda a: as_node(at, a), args))
    made.meta["ingot_value"] = value_name(like)  # parts share the statistics of the whole
    if reason := like.meta.get("ingot_float"):
        made.meta["ingot_float"] = reason
    return made


def as_node(at: Node, part: Any) -> Any:
    if not isinstance(part, torch.Tensor):
        return part
    module: Any = at.graph.owning_module
    return add_constant(module, part.contiguous(), f"{at.name}_part", at)


# ---- factors ----


def split(at: Node, value: Factored, factor: Factor, inner: int) -> tuple[Factored, Factor, Factor]:
    """A static factor as two; of an axis the outer one is unrolled, by slices."""
    count = int(factor.size) // inner
    high, low = Factor(sympy.Integer(count)), Factor(sympy.Integer(inner))
    pair = (high, low) if inner > 1 else (high,)
    dims = tuple(tuple(g for f in d for g in (pair if f is factor else (f,))) for d in value.dims)
    if factor in value.unrolled:
        place = value.unrolled.index(factor)
        parts = {(*i[:place], i[place] // inner, i[place] % inner, *i[place + 1 :]): p for i, p in value.parts.items()}
        unrolled = (*value.unrolled[:place], high, low, *value.unrolled[place + 1 :])
        return replace(value, dims=dims, unrolled=unrolled, parts=parts), high, low
    axis = value.axes.index(factor)
    if len(value.parts) * count > MAX_PARTS:
        raise Unsupported
    parts = {
        (*i, k): moved(at, aten.slice.Tensor, p, axis, k * inner, (k + 1) * inner)
        for i, p in value.parts.items()
        for k in range(count)
    }
    axes = tuple(low if f is factor else f for f in value.axes)
    return Factored(dims, axes, (*value.unrolled, high), parts), high, low


def reshaped(at: Node, value: Factored, shape: Sequence[Any]) -> Factored:
    """The same elements in dimensions of these sizes: factors are grouped anew, static ones split where needed."""
    left, dims = [f for d in value.dims for f in d], list[tuple[Factor, ...]]()
    for size in map(expression, shape):
        group, need = list[Factor](), size
        while need != 1:
            if not left:
                raise Unsupported
            if left[0].static and need.is_Integer and int(left[0].size) % int(need) == 0 and left[0].size != need:
                value, high, low = split(at, value, left[0], int(left[0].size) // int(need))
                left[:1] = [high, low]
            group.append(left.pop(0))
            need = _quotient(need, group[-1].size)
        dims.append(tuple(group))
    if left:
        raise Unsupported
    return replace(value, dims=tuple(dims))


def _quotient(size: sympy.Expr, factor: sympy.Expr) -> sympy.Expr:
    found = sympy.cancel(size / factor)
    if sympy.fraction(sympy.together(found))[1] != 1:
        raise Unsupported
    return sympy.expand(found)


def joined(at: Node, value: Factored, dim: int) -> Factored:
    """With one axis for this dimension: parts along its unrolled outer factors are concatenated."""
    group = value.dims[dim]
    if len(group) < 2:
        return value if not group or group[0] in value.axes else _stacked(at, value, dim)
    *outer, inner = group
    if inner not in value.axes or any(f not in value.unrolled for f in outer):
        raise Unsupported
    rest, axis = tuple(f for f in value.unrolled if f not in outer), value.axes.index(inner)
    parts = {
        tuple(i.values()): moved(at, aten.cat.default, [value.part({**i, **o}) for o in indices(outer)], axis)
        for i in indices(rest)
    }
    both = Factor(sympy.prod([f.size for f in group]))
    axes = tuple(both if f is inner else f for f in value.axes)
    return Factored((*value.dims[:dim], (both,), *value.dims[dim + 1 :]), axes, rest, parts)


def _stacked(at: Node, value: Factored, dim: int) -> Factored:
    """A dimension that is one unrolled factor: along an axis of one, if the parts have such."""
    factor = value.dims[dim][0]
    one = next((a for a in value.axes if a.is_one), None)
    if one is None:
        raise Unsupported
    dims = (*value.dims[:dim], (factor, one), *value.dims[dim + 1 :])
    return joined(at, replace(value, dims=dims), dim)


def arranged(at: Node, part: Part, axes: Sequence[Factor], wanted: Sequence[Factor | None]) -> Part:
    """The part with these axes in this order; None is an axis of size one."""
    ones = [i for i, f in enumerate(axes) if f.is_one and f not in wanted]
    places = [None if f is None else axes.index(f) for f in wanted]
    missing = places.count(None) - len(ones)
    if missing < 0:
        part = moved(at, aten.squeeze.dims, part, ones[missing:])
        gone = set(ones[missing:])
        return arranged(at, part, [f for i, f in enumerate(axes) if i not in gone], wanted)
    for _ in range(missing):
        part = moved(at, aten.unsqueeze.default, part, 0)
    free = iter([*range(missing), *(i + missing for i in ones)])
    order = [next(free) if p is None else p + missing for p in places]
    return part if order == sorted(order) else moved(at, aten.permute.default, part, order)
