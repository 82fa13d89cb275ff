"""flip(x), x[.., index], roll(x) -> linear(x, one-hot rows), on a device that has no op for it.

This is exact in int8: a weight of 1 is 127 * (1 / 127).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.capture.canonicalize.data_movement import CANONICAL_OPS, as_index_select
from ingot.core.fx import calls, source_of
from ingot.rewrite.constant_gather import select_by_matmul
from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device


@dataclass(frozen=True)
class GatherAsLinear:
    """flip(x), x[.., index], roll(x) -> linear(x, one-hot rows), where the backend refuses the op."""

    device: Device
    name: str = "arm-gather-as-matmul"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in [n for n in calls(module) if n.target not in CANONICAL_OPS]:
            found = as_index_select(node)
            if found is not None and not ability(self.device, node).runs:
                places.append(f"{node.name} ({source_of(node)})")
                select_by_matmul(module, node, *found)
        return places
