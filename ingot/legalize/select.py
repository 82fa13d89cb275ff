"""select(x, dim, i) -> reshape(x[i:i+1 along dim]): backends slice, few select."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.graph import add_constant, call, constant_of, has_symbols, is_float, value_of
from ingot.legalize.rule import Rule

aten = torch.ops.aten


def rewrite(node: Node) -> Node | None:
    if node.target is not aten.select.int or not is_float(node) or not isinstance(node.args[2], int):
        return None
    x, dim, index = node.args
    shape = value_of(x).shape  # type: ignore[arg-type]
    if has_symbols(shape):
        return None
    dim, index = dim % len(shape), index % shape[dim % len(shape)]  # type: ignore[operator]
    part = piece(node, x, dim, index, index + 1)
    return call(node, aten.reshape.default, part, list(value_of(node).shape))


def piece(before: Node, x: Any, dim: int, start: int, end: int) -> Node | None:
    """x[start:end] along dim; nothing where empty, x itself where it is all of it, folded where x is a constant."""
    if start >= end:
        return None
    if (start, end) == (0, value_of(x).shape[dim]):
        return x
    constant = constant_of(x)
    if constant is not None:
        tensor = constant.narrow(dim, start, end - start).clone()
        return add_constant(before.graph.owning_module, tensor, f"{before.name}_piece", before)  # type: ignore[arg-type]
    return call(before, aten.slice.Tensor, x, dim, start, end)


RULE = Rule("select as slice", rewrite)
