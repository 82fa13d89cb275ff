"""expand(x, shape) -> x * ones; cat([x, x], d) -> reshape(reshape(x, [.., 1, n, ..]) * ones([.., 2, 1, ..]))

Backends broadcast operands, but have no op that repeats. Where the next op broadcasts, `expand.py` removes the expand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import call, constant_of, has_symbols, same_constant, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if has_symbols(value_of(node).shape):
        return None
    if node.target is aten.expand.default:
        return _expanded(node, node.args[0])
    return _repeated(node) if node.target is aten.cat.default else None


def _expanded(node: Node, x: Any) -> Node | None:
    shape = list(value_of(node).shape)
    given = [1] * (len(shape) - value_of(x).dim()) + list(value_of(x).shape)
    if constant_of(x) is not None:
        return None
    x = x if given == list(value_of(x).shape) else call(node, aten.reshape.default, x, given)
    return _times_ones(node, x, [s if g == 1 else 1 for s, g in zip(shape, given, strict=True)])


def _repeated(node: Node) -> Node | None:
    """Only if all parts are the same value: a cat needs two. ExecuTorch merges equal slices of one value."""
    parts: Any = node.args[0]
    x = parts[0]
    if len({_identity(n) for n in parts}) > 1 or len(parts) < 2 or constant_of(x) is not None:
        return None
    shape = list(value_of(x).shape)
    given: Any = node.args[1] if len(node.args) > 1 else 0
    dim = given % len(shape)
    apart = call(node, aten.reshape.default, x, [*shape[:dim], 1, *shape[dim:]])
    made = _times_ones(node, apart, [*[1] * dim, len(parts), *[1] * (len(shape) - dim)])
    return call(node, aten.reshape.default, made, list(value_of(node).shape))


def _identity(node: Node) -> Any:
    """Equal for nodes that move the same numbers in the same way."""
    moves = node.op == "call_function" and effect_of(node, constant_of).kind is Kind.MOVES
    return str((node.target, node.args, node.kwargs)) if moves else node


def _times_ones(node: Node, x: Node, shape: list[int]) -> Node:
    name = f"ones_{'_'.join(map(str, shape))}"
    ones = same_constant(node.graph.owning_module, torch.ones(shape), name, node)  # type: ignore[arg-type]
    return call(node, aten.mul.Tensor, x, ones)


RULE = Rule("repeat-by-broadcasting", _rewrite)
