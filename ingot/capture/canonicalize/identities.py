"""Ops that do nothing to numbers go: found by experiment, not from a list."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import guard_or_false

from ingot.capture.op_semantics import effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import calls, constant_of, is_float, replace, value_of


def remove_identities(module: GraphModule) -> int:
    """f(x) -> x where every element of f(x) is that element of x: clone, dropout in eval, x[:], .to(channels_last) …"""
    checks = [n for n in calls(module) if _only_checks(n)]
    for node in checks:
        node.graph.erase_node(node)
    return len(checks) + sum(_removed(node) for node in calls(module))


def _only_checks(node: Node) -> bool:
    """An op that returns nothing and writes nothing, about tensors: their types and shapes are known by now."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.returns or schema.is_mutable:
        return False
    return all(isinstance(value_of(n), torch.Tensor) for n in node.all_input_nodes)


def _removed(node: Node) -> bool:
    if node.target is torch.ops.aten.copy_.default or not is_float(node) or weight_axis(node) is not None:
        return False
    if getattr(node.target, "namespace", "") != "aten" or not any(_same_kind(n, node) for n in node.all_input_nodes):
        return False  # a custom op may act only on numbers that no experiment tried: it was written for a reason
    effect = effect_of(node, constant_of)
    if not effect.identity:
        return False
    same = operands(node)[effect.carriers[0]]
    if _returned_as_is(node, same) or not _same_kind(same, node):
        return False
    replace(node, same)
    return True


def _same_kind(a: Node, b: Node) -> bool:
    """As far as is known: of a length that is read from data nothing is, until it runs."""
    x, y = value_of(a), value_of(b)
    if not isinstance(x, torch.Tensor) or x.dtype != y.dtype or x.dim() != y.dim():
        return False
    return all(guard_or_false(i == j) for i, j in zip(x.shape, y.shape, strict=True))


def _returned_as_is(node: Node, same: Node) -> bool:
    """A program whose output *is* an input or a constant has nothing to compute it: keep the copy."""
    return same.op in ("placeholder", "get_attr") and any(u.op == "output" for u in node.users)


def views_as_reshapes(module: GraphModule) -> int:
    """view(x, shape), _unsafe_view(x, shape) -> reshape(x, shape): without clones a view may meet foreign strides."""
    views = [n for n in calls(module) if n.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)]
    for node in views:
        node.target = torch.ops.aten.reshape.default
    return len(views)
