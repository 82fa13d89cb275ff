"""where(keep, x, fill) -> x * keep + fill * not keep, with constant keep and fill, on a device without booleans."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, calls, constant_of, replace, source_of, value_name
from ingot.targets.arm.ability import ability
from ingot.targets.arm.device import Device

WHERE, MUL, ADD = torch.ops.aten.where.self, torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor


@dataclass(frozen=True)
class WhereAsMulAdd:
    """where(keep, x, fill) -> x * keep + fill * not keep, where the backend refuses the op."""

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
    """(x, keep, fill); None: mask or fill is not constant."""
    condition, a, b = node.args
    mask, yes, no = (constant_of(n) for n in (condition, a, b))  # type: ignore[arg-type]
    if mask is None or (yes is None) == (no is None):
        return None
    return (a, mask, no) if no is not None else (b, ~mask, yes)  # type: ignore[return-value]


def _rewrite(module: GraphModule, node: Node) -> None:
    parts = _parts(node)
    assert parts is not None
    x, keep, fill = parts
    fills = torch.where(keep, torch.zeros_like(fill), fill)
    product = call(node, MUL, x, add_constant(module, keep.to(fill.dtype), "keep", node), like=node)
    total = call(node, ADD, product, add_constant(module, fills, "fill", node), like=node)
    product.meta["ingot_value"], total.meta["ingot_value"] = f"arm.{product.name}", value_name(node)
    replace(node, total)
