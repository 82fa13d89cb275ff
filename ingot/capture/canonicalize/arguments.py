"""Keyword arguments become positional: torchao's prepare supports no Node in kwargs, and later passes read one form."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.core.fx import calls


def positional_arguments(module: GraphModule) -> int:
    """f(x, b=y) -> f(x, default_a, y). Returns the number of changed nodes."""
    return sum(_make_positional(node) for node in calls(module) if node.kwargs)


def _make_positional(node: Node) -> bool:
    """f(x, b=2) -> f(x, default_a, 2), for all arguments that the schema allows as positional."""
    schema = getattr(node.target, "_schema", None)
    positional = [a for a in schema.arguments if not a.kwarg_only] if schema else []
    last = max((i for i, a in enumerate(positional) if a.name in node.kwargs), default=-1)
    if last < len(node.args):
        return False
    node.args = node.args + tuple(_value(node, a) for a in positional[len(node.args) : last + 1])
    names = {a.name for a in positional}
    node.kwargs = {k: v for k, v in node.kwargs.items() if k not in names}
    return True


def _value(node: Node, argument: Any) -> Any:
    return node.kwargs.get(argument.name, argument.default_value)
