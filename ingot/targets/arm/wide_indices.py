"""scatter_add(x, dim, int32 index, y) -> scatter_add(x, dim, int64 index, y), for constant indices of host ops

Arm's passes make constants of 64 bits ones of 32. The runtime's kernels read indices of 64 bits only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, calls, constant_of, source_of
from ingot.targets.arm.ability import taken_by_arm
from ingot.targets.arm.device import Device


@dataclass(frozen=True)
class WideIndices:
    device: Device
    name: str = "host-indices-of-64-bits"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in calls(module):
            narrow = list(_narrow_indices(node))
            if narrow and not taken_by_arm(self.device, node):
                for i, index in narrow:
                    node.update_arg(i, _widened(module, node, index))
                places.append(f"{node.name} ({source_of(node)})")
        return places


def _narrow_indices(node: Node) -> Iterator[tuple[int, Node]]:
    schema: Any = getattr(node.target, "_schema", None)
    named = enumerate(schema.arguments[: len(node.args)]) if schema else ()
    for i in (i for i, a in named if a.name == "index"):
        index = node.args[i]
        constant = constant_of(index) if isinstance(index, Node) else None
        if constant is not None and constant.dtype == torch.int32:
            yield i, index  # type: ignore[misc]


def _widened(module: GraphModule, node: Node, index: Node) -> Node:
    constant: Any = constant_of(index)
    wide = add_constant(module, constant.long(), f"{index.name}_wide", node)
    wide.meta["ingot_value"] = f"arm.{wide.name}"
    return wide
