"""How Vela compiles a sum: by the zero point of what it reads."""

from __future__ import annotations

from torch.fx import Node

from ingot.core.fx import is_call
from ingot.targets.arm.device import Device


def prefers_zero_point_zero(device: Device, node: Node) -> bool | None:
    """On U85 another one is subtracted first. The others make a convolution of it then, which is quicker than a sum."""
    if device.is_gpu or not is_call(node, "sum"):
        return None
    return device.name.startswith("ethos-u85")
