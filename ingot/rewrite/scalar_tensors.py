"""op(x, s), s without dimensions -> op(x, reshape(s, [1, 1 …])), for pointwise ops
op(s) -> reshape(op(reshape(s, [1])), [])
reshape(reshape(x, []), shape) -> reshape(x, shape)

Means and norms of a whole tensor, learned factors and picked elements have no dimensions. XNNPACK takes no such tensor:
each would be a boundary of the delegate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import (
    add_constant,
    call,
    calls,
    constant_of,
    inherited_meta,
    replace,
    source_of,
    value_name,
    value_of,
)
from ingot.rewrite.factored_arithmetic import is_pointwise

aten = torch.ops.aten


@dataclass(frozen=True)
class ScalarTensors:
    name: str = "scalars-as-one-element"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in calls(module):
            new = _without_scalars(node)
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                replace(node, new)
        return places


def _without_scalars(node: Node) -> Node | None:
    if _is_reshape(node) and any(map(_makes_scalar, node.all_input_nodes)):
        return _like(node, _reshaped(node, node.args[0], node.args[1]))
    if not is_pointwise(node) or node.kwargs or not any(map(_is_scalar, node.all_input_nodes)):
        return None
    dims = max(value_of(node).dim(), 1)
    args = torch.fx.map_arg(node.args, lambda n: _reshaped(node, n, [1] * dims) if _is_scalar(n) else n)
    new = _like(node, call(node, node.target, *args))  # type: ignore[arg-type]
    return _like(node, call(node, aten.reshape.default, new, [])) if _is_scalar(node) else new


def _is_scalar(node: Node) -> bool:
    val = value_of(node)
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32 and not val.dim()


def _is_reshape(node: Node) -> bool:
    return node.target is aten.reshape.default


def _makes_scalar(node: Node) -> bool:
    return _is_reshape(node) and _is_scalar(node)


def _reshaped(before: Node, value: Any, shape: Any) -> Node:
    """What a reshape to no dimensions read is read itself, and a constant is stored in the new shape."""
    module: Any = before.graph.owning_module
    constant = constant_of(value)
    if constant is not None:
        return add_constant(module, constant.reshape(shape), f"{value.name}_element", before)
    while _makes_scalar(value):
        value = value.args[0]
    return value if list(value_of(value).shape) == list(shape) else call(before, aten.reshape.default, value, shape)


def _like(node: Node, new: Node) -> Node:
    """The same value, planned in float where that one is: recorded statistics stay valid."""
    if new.op == "call_function" and "ingot_value" not in new.meta:
        new.meta.update(inherited_meta(node), ingot_value=value_name(node))
        new.meta.update({k: node.meta[k] for k in ("ingot_float",) if k in node.meta})
    return new


RULE = ScalarTensors()
