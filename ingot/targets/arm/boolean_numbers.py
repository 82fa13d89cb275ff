"""float(mask) -> where(mask, 1, 0), on a device that has booleans and no cast of them to numbers"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, calls, replace, source_of, value_name, value_of
from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device

aten = torch.ops.aten
CASTS = (aten._to_copy.default, aten.to.dtype)


@dataclass(frozen=True)
class BooleanNumbers:
    device: Device
    name: str = "arm-booleans-as-choice"

    def apply(self, module: GraphModule) -> list[str]:
        found = [n for n in calls(module) if _is_cast_of_booleans(n) and not ability(self.device, n).runs]
        return [f"{n.name} ({source_of(n)})" for n in found if self._replaced(module, n)]

    def _replaced(self, module: GraphModule, node: Node) -> bool:
        mask, rank = node.all_input_nodes[0], value_of(node).dim()
        numbers = [add_constant(module, torch.full([1] * rank, x), f"{node.name}_number", node) for x in (1.0, 0.0)]
        choice = call(node, aten.where.self, mask, *numbers)
        if not ability(self.device, choice).runs:
            for unused in (choice, *numbers):
                module.graph.erase_node(unused)
            return False
        choice.meta["ingot_value"] = value_name(node)
        replace(node, choice)
        return True


def _is_cast_of_booleans(node: Node) -> bool:
    if node.target not in CASTS or value_of(node).dtype is not torch.float32:
        return False
    read: Any = value_of(node.all_input_nodes[0])
    return read.dtype is torch.bool
