"""squeeze(f(float(x))) -> f(float(squeeze(x))): f is pointwise, x holds integers or booleans, two sizes are dynamic
squeeze(x) -> reshape(x) where one size is dynamic

Backends infer one size of a reshape. Integers and booleans are reshaped on the host, before the delegate: attention
masks are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, is_float, value_name, value_of
from ingot.core.symbolic_sizes import reshape_argument, same_shape, symbolic_count
from ingot.rewrite.rule import Rule

aten = torch.ops.aten
_UNIT_DIMS = (aten.squeeze.dims, aten.squeeze.dim, aten.unsqueeze.default)
_CONVERSIONS = (aten.to.dtype, aten._to_copy.default)
_MOVED = "ingot_unit_dims"


def _rewrite(node: Node) -> Node | None:
    shape = value_of(node).shape
    if node.target not in _UNIT_DIMS or not has_symbols(shape):
        return None
    x: Any = node.args[0]
    if symbolic_count(shape) < 2:
        return call(node, aten.reshape.default, x, reshape_argument(shape))
    return _moved(x, node) if _comes_from_integers(x) else None


def _comes_from_integers(x: Any) -> bool:
    """By pointwise ops with numbers."""
    while isinstance(x, Node) and torch.Tag.pointwise in getattr(x.target, "tags", ()) and _is_chain(x):
        x = x.all_input_nodes[0]
    return isinstance(x, Node) and x.target in _CONVERSIONS and not is_float(x.all_input_nodes[0])


def _is_chain(x: Node) -> bool:
    sources = x.all_input_nodes
    return len(sources) == 1 and is_float(sources[0]) and same_shape(value_of(sources[0]).shape, value_of(x).shape)


def _moved(x: Node, view: Node) -> Node:
    """`x` with the view's dimensions, made once for all views of this kind: right after it."""
    known = x.meta.setdefault(_MOVED, {})
    key = str((view.target, view.args[1:]))
    if key not in known:
        known[key] = _made(x, view)
    return known[key]


def _made(x: Node, view: Node) -> Node:
    (source,), at = x.all_input_nodes, x.next
    if x.target in _CONVERSIONS and not is_float(source):
        target: Any = view.target
        return call(at, aten.to.dtype, call(at, target, source, *view.args[1:]), value_of(x).dtype, like=x)
    inner = _moved(source, view)
    new = call(x.next, x.target, *(inner if a is source else a for a in x.args), like=x)  # type: ignore[arg-type]
    new.meta["ingot_value"] = value_name(x)
    return new


RULE = Rule("unit-dims-of-integers", _rewrite)
