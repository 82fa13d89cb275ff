"""Ops with a weight operand, and the output-channel axis of that weight, derived from the op schema."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node


def is_random(node: Node) -> bool:
    """The op draws random numbers (tag nondeterministic_seeded)."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def weight_axis(node: Node) -> int | None:
    """Axis of output channels in the weight of f(input, weight, bias, …). None for other ops."""
    names = _argument_names(node.target)
    # Norms have the same first three names, but their weight is one factor per channel.
    if names[:3] != ["input", "weight", "bias"] or {"eps", "epsilon"} & {*names}:
        return None
    return 1 if _is_transposed(node, names) else 0


def is_embedding(node: Node) -> bool:
    """A lookup of rows of its first operand. A bag sums them, and is another kernel."""
    return node.target is torch.ops.aten.embedding.default


def groups_of(node: Node) -> int:
    """The `groups` argument of a convolution, 1 by default."""
    return int(argument_of(node, "groups", 1))


def is_convolution(node: Node) -> bool:
    """With windows along the input; not a transposed one."""
    names = _argument_names(node.target)
    return {"stride", "padding", "dilation"} <= {*names} and weight_axis(node) == 0


def _argument_names(target: Any) -> list[str]:
    schema = getattr(target, "_schema", None)
    return [a.name for a in schema.arguments] if schema else []


def _is_transposed(node: Node, names: list[str]) -> bool:
    """Only a transposed convolution has output_padding; the general `convolution` has a flag."""
    return bool(argument_of(node, "transposed", "output_padding" in names))


def argument_of(node: Node, name: str, otherwise: Any = None) -> Any:
    """The value of a schema argument: given, or its default."""
    names = _argument_names(node.target)
    if name not in names:
        return otherwise
    i = names.index(name)
    given = node.args[i] if i < len(node.args) else node.kwargs.get(name)
    return node.target._schema.arguments[i].default_value if given is None else given  # type: ignore[union-attr]
