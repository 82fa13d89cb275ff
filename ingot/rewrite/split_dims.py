"""reshape(x, [b, l, h, d]) with two symbolic sizes -> h slices of x, and the ops after it on each of them

XNNPACK infers one size of a reshape from the number of elements: it cannot split heads if batch and length are both
dynamic. Reshapes between are regrouped (see `factored_value.py`); cat joins the heads again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, constant_of, source_of, value_of
from ingot.core.symbolic_sizes import reshape_argument, symbolic_count
from ingot.rewrite.factored_value import (
    MAX_PARTS,
    Factor,
    Factored,
    Unsupported,
    arranged,
    as_node,
    indices,
    joined,
    moved,
    reshaped,
    run,
    split,
    whole,
)

aten = torch.ops.aten
_LAST_AXIS_OPS = (aten.linear.default, aten.layer_norm.default, aten.rms_norm.default)
_SHAPE_OPS = (
    aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim, aten.flatten.using_ints,
    aten.unflatten.int, aten.squeeze.default,
)  # fmt: skip  # views that keep the order of elements: their result is their shape


@dataclass(frozen=True)
class SplitDims:
    name: str = "split-dims-as-parts"

    def apply(self, module: GraphModule) -> list[str]:
        return _Parts(module).rewrite() if any(map(_needs_parts, calls(module))) else []


RULE = SplitDims()


def _needs_parts(node: Node) -> bool:
    """A reshape whose result or operand has two symbolic sizes."""
    if node.target not in _SHAPE_OPS or not _is_float32(node):
        return False
    return any(symbolic_count(value_of(n).shape) > 1 for n in (node, node.args[0]))  # type: ignore[arg-type]


def _is_float32(node: Any) -> bool:
    val = value_of(node) if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32


class _Parts:
    """Interprets the graph on factored values. Ops without a rule read values that are whole again."""

    def __init__(self, module: GraphModule) -> None:
        self.module, self.known, self.places = module, dict[Node, Factored](), list[str]()
        self.wholes = dict[Node, Node]()

    def rewrite(self) -> list[str]:
        for node in [n for n in self.module.graph.nodes if n.op in ("call_function", "output")]:
            try:
                found = self._parts_of(node)
            except Unsupported:
                found = None
            if found is None:
                self._keep(node)
            else:
                self.known[node] = found
        return self.places

    def _parts_of(self, node: Node) -> Factored | None:
        rule = _RULES.get(node.target) or (_pointwise if _is_pointwise(node) else None)
        if rule is None or not _is_float32(node) or node.kwargs:
            return None
        read = [n for n in node.all_input_nodes if isinstance(value_of(n), torch.Tensor)]
        if not all(map(_is_float32, read)) or not (_needs_parts(node) or any(n in self.known for n in read)):
            return None
        if _needs_parts(node):
            self.places.append(f"{node.name} ({source_of(node)})")
        return rule(node, lambda n: self.known.get(n) or whole(n))

    def _keep(self, node: Node) -> None:
        for source in [n for n in node.all_input_nodes if n in self.known]:
            node.replace_input_with(source, self._whole(source))

    def _whole(self, node: Node) -> Node:
        """The value as one tensor again; the op itself if its parts cannot be joined."""
        if node not in self.wholes:
            try:
                self.wholes[node] = _joined(node, self.known[node])
            except Unsupported:
                self._keep(node)
                self.wholes[node] = node
        return self.wholes[node]


def _joined(node: Node, value: Factored) -> Node:
    for dim in range(len(value.dims)):
        try:
            value = joined(node, value, dim)
        except Unsupported:
            if any(f in value.unrolled for f in value.dims[dim]):
                raise
    (part,) = value.parts.values()
    factors = [f for d in value.dims for f in d]
    single = all(len(d) < 2 for d in value.dims)
    wanted = [d[0] if d else None for d in value.dims] if single else factors
    made = arranged(node, part, value.axes, wanted)
    if not single:
        made = _regrouped(node, made)
    found: Node = as_node(node, made)
    return found


def _regrouped(node: Node, part: Any) -> Any:
    to = reshape_argument(value_of(node).shape)
    if to is None:
        raise Unsupported
    return moved(node, aten.reshape.default, part, to)


# ---- rules: (node, values of its operands) -> parts ----

Values = Callable[[Node], Factored]


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


def _is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _pointwise(node: Node, of: Values) -> Factored:
    sources = list(dict.fromkeys(node.all_input_nodes))
    values = [of(n) for n in sources]
    if len(values) == 1:
        (value,) = values
        parts = {i: _applied(node, {sources[0]: p}) for i, p in value.parts.items()}
        return replace(value, parts=parts)
    values, dims = _aligned(node, values, len(value_of(node).shape))
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


def _aligned(node: Node, values: list[Factored], rank: int) -> tuple[list[Factored], list[tuple[Factor, ...]]]:
    """The operands of a broadcasting op with common factors, and the factors of each dimension of its result."""
    dims = list[tuple[Factor, ...]]()
    for back in range(rank, 0, -1):
        values, group = _unified(node, values, back)
        dims.append(group)
    return values, dims


def _unified(node: Node, values: list[Factored], back: int) -> tuple[list[Factored], tuple[Factor, ...]]:
    """Dimension -back: factors of the same size are made the same, greater static ones split."""
    group, done = list[Factor](), 0
    while True:
        tails = {k: v.dims[-back][done:] for k, v in enumerate(values) if len(v.dims) >= back and v.dims[-back]}
        if not tails or not any(tails.values()):
            return values, tuple(group)
        if not all(tails.values()):
            raise Unsupported
        heads = {k: t[0] for k, t in tails.items()}
        least = min(heads.values(), key=lambda f: int(f.size) if f.static else 0)
        unroll = any(f in values[k].unrolled for k, f in heads.items())
        for k, f in heads.items():
            values[k], heads[k] = _split_head(node, values[k], f, least, unroll)
        common = Factor(least.size)
        values = [_renamed(v, heads[k], common) if k in heads else v for k, v in enumerate(values)]
        group.append(common)
        done += 1


def _split_head(node: Node, value: Factored, factor: Factor, least: Factor, unroll: bool) -> tuple[Factored, Factor]:
    if factor.size != least.size:
        if not (factor.static and least.static) or int(factor.size) % int(least.size):
            raise Unsupported
        value, high, _ = split(node, value, factor, int(factor.size) // int(least.size))
        return value, high
    if unroll and factor in value.axes:
        if not factor.static:
            raise Unsupported
        value, high, _ = split(node, value, factor, 1)
        return value, high
    return value, factor


def _renamed(value: Factored, old: Factor, new: Factor) -> Factored:
    def name(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
        return tuple(new if f is old else f for f in factors)

    return Factored(tuple(map(name, value.dims)), name(value.axes), name(value.unrolled), value.parts)


def _only(group: tuple[Factor, ...]) -> Factor:
    if len(group) != 1:
        raise Unsupported
    return group[0]


def _fresh(value: Factored, dim: int) -> tuple[Factored, Factor]:
    """The value with another factor of the same size for this dimension."""
    old = _only(value.dims[dim])
    new = Factor(old.size)
    return _renamed(value, old, new), new


def _matmul(node: Node, of: Values) -> Factored:
    a, b = (of(n) for n in node.args)  # type: ignore[arg-type]
    if node.args[0] is node.args[1] or min(len(a.dims), len(b.dims)) < 2:
        raise Unsupported
    a, b = joined(node, joined(node, a, len(a.dims) - 1), len(a.dims) - 2), joined(node, b, len(b.dims) - 2)
    b = joined(node, b, len(b.dims) - 1)
    # Both may come from one value, as queries and keys do: their factors are told apart.
    a, rows = _fresh(a, -2)
    a, inner = _fresh(a, -1)
    b, columns = _fresh(_renamed(b, _only(b.dims[-2]), inner), -1)
    batches = [replace(a, dims=a.dims[:-2]), replace(b, dims=b.dims[:-2])]
    batches, dims = _aligned(node, batches, max(len(a.dims), len(b.dims)) - 2)
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
    rest, dims = _aligned(node, rest, rank)
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


_RULES: dict[Any, Callable[[Node, Values], Factored]] = {
    **dict.fromkeys(_SHAPE_OPS, _reshape),
    **dict.fromkeys(_LAST_AXIS_OPS, _on_last_axis),
    aten.permute.default: _permute,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.softmax.int: _softmax,
    aten.matmul.default: _matmul,
    aten.cat.default: _cat,
    aten.expand.default: _expand,
}
