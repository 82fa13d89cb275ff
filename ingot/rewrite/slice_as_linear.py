"""linear(x, W)[..., a:b] -> linear(x, W[a:b])
x[..., a:b] -> linear(x, rows a:b of the identity), for other dimensions between permutes

Only where another size is symbolic: XNNPACK's slice has the sizes of all dimensions in its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, calls, constant_of, replace, source_of, value_name, value_of
from ingot.core.symbolic_sizes import is_symbolic, symbolic_count

aten = torch.ops.aten


@dataclass(frozen=True)
class SliceAsLinear:
    name: str = "slice-as-linear"

    def apply(self, module: GraphModule) -> list[str]:
        found = [n for n in calls(module) if _bounds(n) is not None]
        for node in found:
            _merge_with_slice_before(node)
        module.graph.eliminate_dead_code()
        places = [f"{n.name} ({source_of(n)})" for n in calls(module) if _bounds(n) is not None]
        for node in [n for n in calls(module) if _bounds(n) is not None]:
            new = _of_linear(node) or _selected(node)
            new.meta["ingot_value"] = value_name(node)
            replace(node, new)
        return places


def _bounds(node: Node) -> tuple[int, int, int] | None:
    """(dim, start, end) of a slice with step 1 along a static dimension of a value with symbolic sizes."""
    if node.target is not aten.slice.Tensor or value_of(node).dtype != torch.float32:
        return None
    given: tuple[Any, ...] = (*node.args, *(None, 0, None, None, 1)[len(node.args) :])
    x, dim, start, end, step = given
    shape = value_of(x).shape
    dim %= len(shape)
    static = all(isinstance(v, int) or v is None for v in (start, end)) and not is_symbolic(shape[dim])
    if step != 1 or not static or not symbolic_count(shape):
        return None
    first, last, _ = slice(start, end).indices(int(shape[dim]))
    return dim, first, last


def _merge_with_slice_before(node: Node) -> None:
    """x[a:][b:c] -> x[a + b:a + c]"""
    before: Any = node.args[0]
    dim, start, end = _bounds(node)  # type: ignore[misc]
    while (outer := _bounds(before)) is not None and outer[0] == dim:
        start, end, before = start + outer[1], end + outer[1], before.args[0]
    node.args = (before, dim, start, end)


def _of_linear(node: Node) -> Node | None:
    """If nothing else reads the linear: then it is computed in pieces, and once."""
    linear: Any = node.args[0]
    dim, start, end = _bounds(node)  # type: ignore[misc]
    if linear.target is not aten.linear.default or dim != value_of(node).dim() - 1:
        return None
    x, *constants = linear.args
    tensors = [constant_of(c) for c in constants if c is not None]
    if any(t is None for t in tensors) or not all((b := _bounds(u)) and b[0] == dim for u in linear.users):
        return None
    rows = [_constant(node, t[start:end], "rows") for t in tensors if t is not None]
    return call(node, aten.linear.default, x, *rows, like=linear)


def _selected(node: Node) -> Node:
    x: Any = node.args[0]
    dim, start, end = _bounds(node)  # type: ignore[misc]
    order = [*(d for d in range(value_of(x).dim()) if d != dim), dim]
    size, plain = int(value_of(x).shape[dim]), order == sorted(order)
    weight = _constant(node, torch.eye(size)[start:end], "selection")
    made = call(node, aten.linear.default, x if plain else call(node, aten.permute.default, x, order), weight)
    return made if plain else call(node, aten.permute.default, made, [order.index(d) for d in range(len(order))])


def _constant(node: Node, tensor: torch.Tensor, what: str) -> Node:
    module: Any = node.graph.owning_module
    return add_constant(module, tensor.detach().clone(), f"{node.name}_{what}", node)


RULE = SliceAsLinear()
