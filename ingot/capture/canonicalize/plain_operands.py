"""copy(x, y) -> y expanded to x; add(x, y, alpha=a) -> add(x, y * a); linear(x, vector) -> linear(x, one-row matrix);
cat([int x, y]) -> cat([float x, y])

No operand that is not read, no hidden factor or cast, and every weight of a linear has channels.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, has_symbols, replace, value_of

aten = torch.ops.aten


def plain_operands(module: GraphModule) -> int:
    forms = (_without_destination, _without_factor, _with_channels, _of_one_dtype)
    return sum(any(form(node) for form in forms) for node in calls(module))


def _without_destination(node: Node) -> bool:
    """What a slice assignment writes. Of x only shape and type matter."""
    if node.target is not aten.copy.default:
        return False
    x, y = (value_of(n) for n in node.args[:2])  # type: ignore[arg-type]
    if x.dtype != y.dtype or has_symbols((*x.shape, *y.shape)):
        return False
    source: Any = node.args[1]
    replace(node, source if x.shape == y.shape else call(node, aten.expand.default, source, list(x.shape)))
    return True


def _without_factor(node: Node) -> bool:
    """Of a sum or difference. XNNPACK's partitioner takes it and its kernel adds without the factor."""
    if node.target not in (aten.add.Tensor, aten.sub.Tensor) or node.kwargs.get("alpha", 1) == 1:
        return False
    x, y = node.args
    if not isinstance(y, Node):
        return False
    node.args = (x, call(node, aten.mul.Tensor, y, node.kwargs["alpha"]))
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "alpha"}
    return True


def _with_channels(node: Node) -> bool:
    """A vector in place of a linear's weight gives one number for each row."""
    if node.target is not aten.linear.default or value_of(node.args[1]).dim() != 1:  # type: ignore[arg-type]
        return False
    if has_symbols(value_of(node).shape):
        return False
    x, vector, *bias = node.args
    row = call(node, aten.reshape.default, vector, [1, -1])
    one = [call(node, aten.reshape.default, b, [1]) for b in bias if isinstance(b, Node)]
    made = call(node, aten.linear.default, x, row, *one)
    replace(node, call(node, aten.reshape.default, made, list(value_of(node).shape)))
    return True


def _of_one_dtype(node: Node) -> bool:
    """Arm's passes leave integers as they are beside quantized values, and the runtime's cat takes them for floats."""
    made = value_of(node)
    if not isinstance(made, torch.Tensor) or not made.is_floating_point():
        return False
    integers = {n for n in _promoted(node) if _is_integer(n)}
    for operand in integers:
        node.replace_input_with(operand, call(node, aten._to_copy.default, operand, dtype=made.dtype))
    return bool(integers)


def _promoted(node: Node) -> list[Node]:
    """Operands that the op converts to the dtype of its result: those in lists, and numbers of a pointwise op."""
    schema: Any = getattr(node.target, "_schema", None)
    given = zip(schema.arguments, node.args, strict=False) if schema else ()
    lists: list[Any] = [items for argument, items in given if str(argument.type) == "List[Tensor]"]
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    numbers = [n for n in node.args if isinstance(n, Node) and not _is_condition(n)] if pointwise else []
    return [*chain.from_iterable(lists), *numbers]


def _is_integer(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _is_condition(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool
