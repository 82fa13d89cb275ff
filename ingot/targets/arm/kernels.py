"""What Arm's backend can do with an op, as its partitioner answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device
from ingot.targets.arm.fusions import fuses
from ingot.targets.arm.lut_ops import is_lut_op
from ingot.targets.arm.zero_points import prefers_zero_point_zero
from ingot.targets.base import Ability, Kernels


@dataclass(frozen=True)
class ArmKernels(Kernels):
    """`requantizes` stays False: in TOSA a requantize is always a separate op."""

    device: Device
    integer_results = True

    def ability(self, node: Node) -> Ability:
        return ability(self.device, node)

    def fuses(self, producer: Node, consumer: Node) -> bool:
        return fuses(producer, consumer)

    def is_lut(self, node: Node) -> bool:
        return is_lut_op(node)

    def prefers_zero_point_zero(self, node: Node) -> bool | None:
        return prefers_zero_point_zero(self.device, node)
