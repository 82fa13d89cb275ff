"""Keyword arguments become positional: torchao's prepare meets no Node in a keyword, and rows read one form."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.core.fx import calls


def positional_arguments(module: GraphModule) -> int:
    return sum(_positional(node) for node in calls(module) if node.kwargs)


def _positional(node: Node) -> bool:
    """f(x, b=2) -> f(x, default_a, 2), as far as the schema has positions."""
    schema = getattr(node.target, "_schema", None)
    wanted = [a for a in schema.arguments if not a.kwarg_only] if schema else []
    last = max((i for i, a in enumerate(wanted) if a.name in node.kwargs), default=-1)
    if last < len(node.args):
        return False
    node.args = node.args + tuple(_given(node, a) for a in wanted[len(node.args) : last + 1])
    names = {a.name for a in wanted}
    node.kwargs = {k: v for k, v in node.kwargs.items() if k not in names}
    return True


def _given(node: Node, argument: Any) -> Any:
    return node.kwargs.get(argument.name, argument.default_value)
