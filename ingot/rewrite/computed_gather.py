"""x.index_select(d, i), x[i], x[arange, i], gather(x, d, i) -> bmm(one-hot of i, x), for an index made of integers
index_add(x, d, i, y), scatter_add(x, d, i, y) -> x + bmm(columns of the one-hot of i, y)

The index is known before the first delegate: the position of the last token, lengths, tokens to be predicted. As a
gather on the host it would be in the middle of the program. An index that floats decide stays a gather.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace as replace_record
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import (
    call,
    calls,
    constant_of,
    has_symbols,
    is_float,
    replace,
    same_constant,
    source_of,
    value_name,
    value_of,
)
from ingot.rewrite.boolean_masks import stays_finite
from ingot.rewrite.decomposition import canonicalize_again
from ingot.rewrite.rule import in_float

aten = torch.ops.aten
REASON = "part of a gather: zeros and ones in float"
LARGEST = 1 << 20  # one-hot elements


@dataclass(frozen=True)
class _Pick:
    """Rows of x, as batch x rows x rest: which ones, as batch x picks. `added`: to which of them rows are added."""

    x: Any
    index: Node
    dim: int
    by_batch: bool  # each entry of the dimensions before `dim` has indices of its own
    added: Any = None


@dataclass(frozen=True)
class ComputedGather:
    name: str = "gather-as-one-hot-product"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in calls(module):
            new = _rewrite(node)
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                new.meta["ingot_value"] = value_name(node)
                replace(node, new)
        if places:
            canonicalize_again(module)
        return places


def _rewrite(node: Node) -> Node | None:
    found = _pick(node) if is_float(node) and value_of(node).dtype == torch.float32 else None
    if found is None or not _is_computed_float(found.added or found.x) or not _comes_from_integers(found.index):
        return None
    if not stays_finite(found.added or found.x):
        return None  # zero times infinity is no zero
    shape, picked = value_of(found.x).shape, value_of(found.index)
    many = picked.numel() * shape[found.dim]
    if has_symbols([*shape, *picked.shape, *value_of(node).shape]) or not 0 < many <= LARGEST:
        return None
    lead, size, rest = math.prod(shape[: found.dim]), shape[found.dim], math.prod(shape[found.dim + 1 :])
    batch = lead if found.by_batch else 1
    hot = _one_hot(node, call(node, aten.reshape.default, found.index, [batch, -1, 1]), size)
    hot = hot if batch == lead else in_float(node, REASON, aten.expand.default, hot, [lead, -1, -1])
    if found.added is not None:
        rows = call(node, aten.reshape.default, found.added, [lead, -1, rest])
        transposed = in_float(node, REASON, aten.permute.default, hot, [0, 2, 1])
        sums = in_float(node, REASON, aten.bmm.default, transposed, rows)
        flat = in_float(node, REASON, aten.reshape.default, sums, list(value_of(node).shape))
        return in_float(node, REASON, aten.add.Tensor, flat, found.x)
    rows = call(node, aten.reshape.default, found.x, [lead, size, rest])
    made = in_float(node, REASON, aten.bmm.default, hot, rows)
    return in_float(node, REASON, aten.reshape.default, made, list(value_of(node).shape))


def _one_hot(node: Node, index: Node, size: int) -> Node:
    """Also for indices from the end."""
    module: Any = node.graph.owning_module
    dtype = value_of(index).dtype
    at = torch.arange(size, dtype=dtype).reshape(1, 1, -1)
    start, end = (same_constant(module, t, f"{n}_{size}", node) for t, n in ((at, "places"), (at - size, "from_end")))
    hit = call(node, aten.logical_or.default, *(call(node, aten.eq.Tensor, index, c) for c in (start, end)))
    return in_float(node, REASON, aten.to.dtype, hit, torch.float32)


def _arguments(node: Node) -> Any:
    return node.args


def _pick(node: Node) -> _Pick | None:
    return _OPS[node.target](node) if node.target in _OPS and not node.kwargs else None


def _selected(node: Node) -> _Pick:
    x, dim, index = _arguments(node)
    return _Pick(x, index, dim % value_of(x).dim(), False)


def _indexed(node: Node) -> _Pick | None:
    x, indices = _arguments(node)
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(value_of(i).dtype == torch.bool for _, i in given):
        return None
    if len(given) == 1:
        return _Pick(x, given[0][1], given[0][0], False)
    return _Pick(x, given[1][1], 1, True) if len(given) == 2 and _numbers_entries(x, given) else None


def _numbers_entries(x: Any, given: list[Any]) -> bool:
    """x[arange(batch), index]: one element of each entry."""
    (first, rows), (second, index) = given
    entries, batch = constant_of(rows), value_of(x).shape[0]
    known = entries is not None and torch.equal(entries.reshape(-1), torch.arange(batch, dtype=entries.dtype))
    return known and (first, second) == (0, 1) and list(value_of(index).shape) == [batch] == list(entries.shape)  # type: ignore[union-attr]


def _gathered(node: Node) -> _Pick | None:
    """gather(x, d, i) where i is the same for all that follows d, by an expand of its last dimensions."""
    x, given, index = _arguments(node)[:3]
    shape, dim = value_of(x).shape, given % value_of(x).dim()
    if not isinstance(index, Node) or value_of(index).shape[:dim] != shape[:dim]:
        return None
    if value_of(index).shape[dim + 1 :] != shape[dim + 1 :]:
        return None
    if dim == value_of(x).dim() - 1:
        return _Pick(x, index, dim, True)
    narrow: Any = index.args[0] if index.target is aten.expand.default else None
    if narrow is None or [*value_of(narrow).shape] != [*value_of(index).shape[: dim + 1], *[1] * len(shape[dim + 1 :])]:
        return None
    return _Pick(x, narrow, dim, True)


def _index_added(node: Node) -> _Pick:
    x, dim, index, added = _arguments(node)
    return _Pick(x, index, dim % value_of(x).dim(), False, added)


def _scatter_added(node: Node) -> _Pick | None:
    """As gather, into places of x."""
    _, _, index, added = _arguments(node)
    found = _gathered(node) if value_of(index).shape == value_of(added).shape else None
    return None if found is None else replace_record(found, added=added)


_OPS = {
    aten.index_add.default: _index_added,
    aten.scatter_add.default: _scatter_added,
    aten.index_select.default: _selected,
    aten.index.Tensor: _indexed,
    aten.gather.default: _gathered,
}


def _is_computed_float(x: Any) -> bool:
    return isinstance(x, Node) and x.op == "call_function" and is_float(x)


def _comes_from_integers(index: Node) -> bool:
    """Nothing that it is computed from is float, and it is no constant."""
    queue, seen = [index], set[Node]()
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        val = value_of(node)
        if not isinstance(val, torch.Tensor) or val.is_floating_point():
            return False
        queue += node.all_input_nodes
    return any(n.op == "placeholder" for n in seen)


RULE = ComputedGather()
