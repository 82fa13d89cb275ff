"""flip(x), x[.., index], roll(x) -> linear(x, one-hot rows), on a device that has no op for it.

This is exact in int8: a weight of 1 is 127 * (1 / 127).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.data_movement import CANONICAL_OPS, as_index_select
from ingot.core.fx import calls, replace, source_of, value_name
from ingot.rewrite.constant_gather import gathered, index_grid
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
            new = None if not _is_gather(node) or ability(self.device, node).runs else gathered(module, node)
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                new.meta["ingot_value"] = value_name(node)
                replace(node, new)
        return places


def _is_gather(node: Node) -> bool:
    """Asked first: queries to the device are slow."""
    return as_index_select(node) is not None or (node.target is aten.index.Tensor and index_grid(node) is not None)
