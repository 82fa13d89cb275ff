"""slice_scatter(base, src, dim, start, end) -> cat([base[:start], src, base[end:]], dim)"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, has_symbols, is_state, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.slice_scatter.default or has_symbols(value_of(node).shape) or _writes_state(node):
        return None
    base, src, dim, start, end, step = _arguments(node)
    if step != 1:
        return None
    size = value_of(node).shape[dim]
    start, end = (_clamped(i, size) for i in (start or 0, size if end is None else end))
    parts = [_part(node, base, dim, 0, start), src, _part(node, base, dim, end, size)]
    parts = [p for p in parts if p is not None]
    return call(node, aten.cat.default, parts, dim) if len(parts) > 1 else call(node, aten.clone.default, src)


def _arguments(node: Node) -> tuple[Any, ...]:
    defaults = (None, None, 0, None, None, 1)
    given: tuple[Any, ...] = (*node.args, *defaults[len(node.args) :])
    return (*given[:2], given[2] % value_of(node).dim(), *given[3:])


def _clamped(index: int, size: int) -> int:
    return min(max(index + size if index < 0 else index, 0), size)


def _writes_state(node: Node) -> bool:
    """A cache update ends in a write to the buffer: it is not rewritten."""
    return is_state(node.args[0]) and any(u.target is aten.copy_.default for u in node.users)  # type: ignore[arg-type]


def _part(before: Node, x: Any, dim: int, start: int, end: int) -> Node | None:
    """x[start:end] along dim; None if empty, x if complete, a new constant if x is one."""
    if start >= end:
        return None
    if (start, end) == (0, value_of(x).shape[dim]):
        return x
    constant = constant_of(x)
    if constant is not None:
        tensor = constant.narrow(dim, start, end - start).clone()
        return add_constant(before.graph.owning_module, tensor, f"{before.name}_piece", before)  # type: ignore[arg-type]
    return call(before, aten.slice.Tensor, x, dim, start, end)


RULE = Rule("slice-scatter-as-cat", _rewrite)
