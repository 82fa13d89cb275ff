"""op(x, 2) -> cast(op(x, tensor(2))), for x without dimensions whose dtype the tensor would widen

ExecuTorch lowers a number as a tensor: float32, or int64. Beside a tensor with dimensions its dtype counts for nothing;
beside a half or an int32 without dimensions it decides the dtype of the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, calls, replace, value_of

aten = torch.ops.aten


def keep_dtypes_beside_numbers(module: GraphModule) -> None:
    """Insert the tensors that ExecuTorch would insert, and casts of results whose dtype they change."""
    for node in calls(module):
        known = all(isinstance(value_of(n), torch.Tensor) for n in node.all_input_nodes)  # dequantized ones are float32
        places = _numbers_in_place_of_tensors(node) if known and _has_no_dims(node) else []
        if places:
            _keep_dtype(module, node, places)
    module.recompile()


def _keep_dtype(module: GraphModule, node: Node, places: list[int]) -> None:
    constants = {i: add_constant(module, torch.tensor(node.args[i]), f"{node.name}_number", node) for i in places}
    args = [constants.get(i, a) for i, a in enumerate(node.args)]
    widened = call(node, node.target, *args, **node.kwargs)  # type: ignore[arg-type]
    if value_of(widened).dtype != value_of(node).dtype:
        replace(node, _cast(node, widened))
    else:
        for unused in (widened, *constants.values()):
            module.graph.erase_node(unused)


def _cast(node: Node, widened: Node) -> Node:
    with node.graph.inserting_before(node):
        cast = node.graph.call_function(aten._to_copy.default, (widened,), {"dtype": value_of(node).dtype})
    cast.meta = {**widened.meta, "val": value_of(node)}
    return cast


def _has_no_dims(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and not value.dim()


def _numbers_in_place_of_tensors(node: Node) -> list[int]:
    """Positions of Python numbers where the schema has a Tensor."""
    schema: Any = getattr(node.target, "_schema", None)
    arguments = schema.arguments[: len(node.args)] if schema else []
    tensors = [i for i, a in enumerate(arguments) if str(a.type) == "Tensor"]
    return [i for i in tensors if isinstance(node.args[i], bool | int | float)]
