"""Which ops multiply by a weight, and along which axis of it the output channels run: read off the op's own schema."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node


def is_random(node: Node) -> bool:
    """The op draws from a random generator (torch tags it so)."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def weight_axis(node: Node) -> int | None:
    """The axis of output channels in the weight of f(input, weight, bias, …); None for every other op."""
    names = _argument_names(node.target)
    # A norm has the same first three names, but its weight is a factor per channel and not a matrix.
    if names[:3] != ["input", "weight", "bias"] or "running_mean" in names:
        return None
    return 1 if _is_transposed(node, names) else 0


def groups_of(node: Node) -> int:
    return int(_argument(node, "groups", 1))


def _argument_names(target: Any) -> list[str]:
    schema = getattr(target, "_schema", None)
    return [a.name for a in schema.arguments] if schema else []


def _is_transposed(node: Node, names: list[str]) -> bool:
    """Only a transposed convolution pads its output; the general `convolution` says so with a flag."""
    return bool(_argument(node, "transposed", "output_padding" in names))


def _argument(node: Node, name: str, otherwise: Any) -> Any:
    names = _argument_names(node.target)
    if name not in names:
        return otherwise
    i = names.index(name)
    given = node.args[i] if i < len(node.args) else node.kwargs.get(name)
    return node.target._schema.arguments[i].default_value if given is None else given  # type: ignore[union-attr]
