"""argmax(x, d) -> int64(int32(argmax(x, d))); with keepdim int64(unsqueeze(int32(argmax(x, d)), d))

TOSA's argmax gives 32 bits and drops the dimension. Arm's partitioner takes one whose result is cut to 32 bits by all
that read it. On Ethos-U it takes none: it asks for the dtype of the dequantized input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, replace, source_of, value_name, value_of
from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device

aten = torch.ops.aten


@dataclass(frozen=True)
class NarrowArgmax:
    device: Device
    name: str = "arm-argmax-of-32-bits"

    def apply(self, module: GraphModule) -> list[str]:
        found = [n for n in calls(module) if n.target is aten.argmax.default and len(n.args) > 1]
        return [f"{n.name} ({source_of(n)})" for n in found if self._replaced(n)]

    def _replaced(self, node: Node) -> bool:
        x, dim, *keepdim = node.args
        index: Any = call(node, aten.argmax.default, x, dim)
        if not ability(self.device, index).runs:
            node.graph.erase_node(index)
            return False
        narrow = call(node, aten._to_copy.default, index, dtype=torch.int32)
        kept = call(node, aten.unsqueeze.default, narrow, dim) if any(keepdim) else narrow
        wide = call(node, aten._to_copy.default, kept, dtype=value_of(node).dtype)
        wide.meta["ingot_value"] = value_name(node)
        replace(node, wide)
        return True
