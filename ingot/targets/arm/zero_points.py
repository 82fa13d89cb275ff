"""Which zero point makes a sum faster: Vela compiles it by the zero point of its input."""

from __future__ import annotations

from torch.fx import Node

from ingot.core.fx import is_call
from ingot.targets.arm.device import Device


def prefers_zero_point_zero(device: Device, node: Node) -> bool | None:
    """U85 subtracts a zero point other than 0 first. U55 and U65 then compile a convolution, which is faster."""
    if device.is_gpu or not is_call(node, "sum"):
        return None
    return device.name.startswith("ethos-u85")
