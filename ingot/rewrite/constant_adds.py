"""add(add(x, a), b) -> add(x, a + b) for constants a and b"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, value_of
from ingot.core.symbolic_sizes import same_shape
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    inner, b = _split(node)
    x, a = _split(inner) if inner is not None and len(inner.users) == 1 else (None, None)
    if x is None or a is None or b is None:
        return None
    both = a.detach() + b.detach()
    if both.numel() > max(a.numel(), b.numel()) or not same_shape(value_of(inner).shape, value_of(node).shape):  # type: ignore[arg-type]
        return None
    constant = add_constant(node.graph.owning_module, both, f"{node.name}_sum", node)  # type: ignore[arg-type]
    return call(node, aten.add.Tensor, x, constant)


def _split(node: Any) -> tuple[Node | None, torch.Tensor | None]:
    """The value and the constant of a plain sum of the two."""
    if not isinstance(node, Node) or node.target is not aten.add.Tensor or node.kwargs:
        return None, None
    sides = [n for n in node.args if isinstance(n, Node)]
    constants = [c for n in sides if (c := constant_of(n)) is not None]
    values = [n for n in sides if constant_of(n) is None]
    return (values[0], constants[0]) if len(constants) == len(values) == 1 else (None, None)


RULE = Rule("merge-constant-adds", _rewrite)
