"""flip(x), x[.., index], roll(x) -> linear(x, one-hot rows), on a device that has no op for it.

This is exact in int8: a weight of 1 is 127 * (1 / 127).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.data_movement import CANONICAL_OPS, as_index_select
from ingot.core.fx import add_constant, call, calls, replace, source_of, value_name, value_of
from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device

aten = torch.ops.aten


@dataclass(frozen=True)
class GatherAsLinear:
    """flip(x), x[.., index], roll(x) -> linear(x, one-hot rows), where the backend refuses the op."""

    device: Device
    name: str = "arm-gather-as-matmul"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in [n for n in calls(module) if n.target not in CANONICAL_OPS and "ingot_float" not in n.meta]:
            found = as_index_select(node)
            if found is not None and not ability(self.device, node).runs:
                places.append(f"{node.name} ({source_of(node)})")
                _rewrite(module, node, *found)
        return places


def _rewrite(module: GraphModule, node: Node, x: Node, dim: int, index: list[int]) -> None:
    one_hot = torch.eye(value_of(x).shape[dim], dtype=value_of(x).dtype)[index]
    weight = add_constant(module, one_hot, f"{node.name}_rows", node)
    order = [i for i in range(value_of(x).dim()) if i != dim] + [dim]
    made = call(node, aten.linear.default, _permuted(node, x, order), weight)
    made = _permuted(node, made, [order.index(i) for i in range(len(order))])
    made.meta["ingot_value"] = value_name(node)
    replace(node, made)


def _permuted(node: Node, x: Node, order: list[int]) -> Node:
    return x if order == sorted(order) else call(node, aten.permute.default, x, order)
