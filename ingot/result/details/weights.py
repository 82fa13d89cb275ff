"""The size of each constant in the file, with the qparams of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of, module_path
from ingot.plan.plan_data import QParams
from ingot.result.details.nodes import placement_of
from ingot.result.details.records import Weight

if TYPE_CHECKING:
    from ingot.result.casting import Casting


def weights_of(casting: Casting) -> tuple[Weight, ...]:
    """Each tensor once, with its first reader."""
    places, layers = placement_of(casting), {layer.name: layer.bytes for layer in casting.layers}
    found: dict[str, Weight] = {}
    for node in casting.needed_evidence.program.module.graph.nodes:
        for operand, read in enumerate(operands(node)):
            tensor, name = constant_of(read), str(read.target)
            if tensor is not None and name not in found:
                qparams = casting.plan.qparams(node.name, operand)
                found[name] = _weight(name, tensor, node, qparams, places.get(node.name), layers.get(node.name))
    return tuple(found.values())


def _weight(
    name: str, tensor: torch.Tensor, reader: Node, qparams: QParams | None, place: int | None, packed: int | None
) -> Weight:
    """`packed` is the size that a weight-only scheme counted for the matrix of this reader."""
    dtype = str(tensor.dtype).removeprefix("torch.") if qparams is None else qparams.dtype
    size = tensor.numel() * getattr(torch, dtype).itemsize
    by_scheme = packed is not None and tensor.dim() == 2
    bits = "packed" if by_scheme else dtype
    stored = packed if by_scheme and packed is not None else size
    return Weight(name, reader.name, module_path(reader), tuple(tensor.shape), bits, stored, place)
