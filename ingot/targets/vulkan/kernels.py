"""What Vulkan's kernels can do: float, and its partitioner decides while lowering."""

from __future__ import annotations

from torch.fx import Node

from ingot.targets.base import Ability, Kernels
from ingot.targets.xnnpack.kernels import XnnpackKernels


class VulkanKernels(Kernels):
    def ability(self, node: Node) -> Ability:
        """Float for every op: the partitioner decides while lowering."""
        return Ability(frozenset({"float"}), "Vulkan's partitioner decides while lowering")

    def weight_axis(self, node: Node) -> int | None:
        return XnnpackKernels().weight_axis(node)
