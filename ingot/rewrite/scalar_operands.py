"""add(x, 2.0), mul(x, 2.0) … -> the same op with a constant tensor, which can be quantized; rsub(x, 1) -> sub(1, x)

Also the overloads for numbers: mul.Scalar -> mul.Tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, is_float, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten
_OF_NUMBERS = {getattr(aten, n).Scalar: getattr(aten, n).Tensor for n in ("add", "sub", "mul", "div")}
REVERSED = frozenset({aten.rsub.Scalar, aten.rsub.Tensor})


def _rewrite(node: Node) -> Node | None:
    """A number cannot be quantized; a whole number is lowered as an integer tensor, which splits the delegate."""
    if node.target in REVERSED:
        return _in_order(node)
    if node.target in _OF_NUMBERS and not node.kwargs and len(node.args) == 2 and is_float(node):
        return call(node, _OF_NUMBERS[node.target], node.args[0], _as_constant(node, node.args[1]))
    at = _scalar_in_place_of_tensor(node)
    if at is None or not is_float(node) or node.kwargs:
        return None
    args = list(node.args)
    args[at] = _as_constant(node, args[at])
    return call(node, node.target, *args)  # type: ignore[arg-type]


def _in_order(node: Node) -> Node | None:
    """rsub(x, y) -> sub(y, x)"""
    if len(node.args) > 2 or node.kwargs or not is_float(node):
        return None
    x, y = node.args
    return call(node, aten.sub.Tensor, y if isinstance(y, Node) else _as_constant(node, y), x)


def _as_constant(node: Node, number: Any) -> Node:
    tensor = torch.full((1,) * value_of(node).dim(), float(number), dtype=value_of(node).dtype)
    return add_constant(node.graph.owning_module, tensor, f"{node.name}_number", node)  # type: ignore[arg-type]


def _scalar_in_place_of_tensor(node: Node) -> int | None:
    """The position of a Python number where the schema expects a Tensor."""
    schema = getattr(node.target, "_schema", None)
    arguments = schema.arguments[: len(node.args)] if schema else []
    found = [i for i, a in enumerate(arguments) if str(a.type) == "Tensor" and isinstance(node.args[i], (int, float))]
    return found[0] if found else None


RULE = Rule("scalar-as-constant", _rewrite)
