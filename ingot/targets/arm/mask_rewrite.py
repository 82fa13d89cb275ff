"""where(keep, x, fill) -> x * keep + fill * not keep, with a constant mask, on a target that has no booleans."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, calls, constant_of, replace, source_of, value_name
from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device

WHERE, MUL, ADD = torch.ops.aten.where.self, torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor


@dataclass(frozen=True)
class Masks:
    """Only where the backend refuses the where itself."""

    device: Device
    name: str = "arm-where-as-mul"

    def apply(self, module: GraphModule) -> list[str]:
        masked = [n for n in calls(module) if n.target is WHERE and _parts(n) is not None]
        refused = [n for n in masked if not ability(self.device, n).runs]
        places = [f"{n.name} ({source_of(n)})" for n in refused]
        for node in refused:
            _rewrite(module, node)
        return places


def _parts(node: Node) -> tuple[Node, torch.Tensor, torch.Tensor] | None:
    """What is kept, where, and what is put elsewhere; None where mask or fill are no constants."""
    condition, a, b = node.args
    mask, yes, no = (constant_of(n) for n in (condition, a, b))  # type: ignore[arg-type]
    if mask is None or (yes is None) == (no is None):
        return None
    return (a, mask, no) if no is not None else (b, ~mask, yes)  # type: ignore[return-value]


def _rewrite(module: GraphModule, node: Node) -> None:
    parts = _parts(node)
    assert parts is not None
    kept, keep, fill = parts
    elsewhere = torch.where(keep, torch.zeros_like(fill), fill)
    left = call(node, MUL, kept, add_constant(module, keep.to(fill.dtype), "keep", node), like=node)
    made = call(node, ADD, left, add_constant(module, elsewhere, "fill", node), like=node)
    left.meta["ingot_value"], made.meta["ingot_value"] = f"arm.{left.name}", value_name(node)
    replace(node, made)
