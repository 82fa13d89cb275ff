"""Remove ops that do not change values. Found by probing, not from a list."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import calls, constant_of, is_float, replace, value_of
from ingot.core.symbolic_sizes import same_shape


def remove_identities(module: GraphModule) -> int:
    """f(x) -> x if f(x) equals x elementwise: clone, dropout in eval, x[:], .to(channels_last) …"""
    assertions = [n for n in calls(module) if _is_assertion(n)]
    for node in assertions:
        node.graph.erase_node(node)
    return len(assertions) + sum(_remove_identity(node) for node in calls(module))


def _is_assertion(node: Node) -> bool:
    """An op on tensors that returns nothing and mutates nothing: a check of dtype or shape, already known here."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.returns or schema.is_mutable:
        return False
    return all(isinstance(value_of(n), torch.Tensor) for n in node.all_input_nodes)


def _remove_identity(node: Node) -> bool:
    if node.target is torch.ops.aten.copy_.default or not is_float(node) or weight_axis(node) is not None:
        return False
    if getattr(node.target, "namespace", "") != "aten" or not any(
        _same_dtype_and_shape(n, node) for n in node.all_input_nodes
    ):
        return False  # a custom op may change only values that no probe tried
    effect = effect_of(node, constant_of)
    if not effect.identity:
        return False
    source = operands(node)[effect.carriers[0]]
    if _is_returned(node, source) or not _same_dtype_and_shape(source, node):
        return False
    replace(node, source)
    return True


def _same_dtype_and_shape(a: Node, b: Node) -> bool:
    """Same dtype and the same shape for every value of symbolic sizes."""
    x, y = value_of(a), value_of(b)
    return isinstance(x, torch.Tensor) and x.dtype == y.dtype and same_shape(x.shape, y.shape)


def _is_returned(node: Node, source: Node) -> bool:
    """An output must be computed by an op: keep a copy of an input or a constant that is returned."""
    return source.op in ("placeholder", "get_attr") and any(u.op == "output" for u in node.users)


def views_as_reshapes(module: GraphModule) -> int:
    """view(x, shape), _unsafe_view(x, shape) -> reshape(x, shape): without clones the strides may not allow a view."""
    views = [n for n in calls(module) if n.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)]
    for node in views:
        node.target = torch.ops.aten.reshape.default
    return len(views)
