"""Functions of int16 numbers as a backend has them: few knots, and lines between.

What a function gives at a knot is rounded as its result is stored; so the quantized graph says what will be computed,
derived from the function itself and never from the program that was made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, is_call
from ingot.plan.lut_alignment import breakpoint_spacing
from ingot.plan.model import QParams
from ingot.quantize.audit import parameters
from ingot.targets.base import Target


@dataclass(frozen=True)
class Lines:
    """What a function gives at each knot; the middle one is at zero."""

    heights: Tensor
    gap: float

    def __call__(self, x: Tensor) -> Tensor:
        place = x.double() / self.gap + len(self.heights) // 2
        left = place.floor().clamp(0, len(self.heights) - 2)
        low, high = self.heights[left.long()], self.heights[left.long() + 1]
        return low + (high - low) * (place - left)


def lines_of(module: GraphModule, target: Target) -> dict[Node, Lines]:
    """By op, where the target interpolates."""
    found = {n: _lines(n, target) for n in calls(module) if target.numerics.lut_entries and target.kernels.is_lut(n)}
    return {n: lines for n, lines in found.items() if lines is not None}


def _lines(node: Node, target: Target) -> Lines | None:
    read, users = node.all_input_nodes[0], list(node.users)
    if not is_call(read, "dequantize_per_tensor") or not all(is_call(u, "quantize_per_tensor") for u in users):
        return None
    stored, given = parameters(read), {parameters(u) for u in users}
    knots = target.numerics.lut_entries.get(stored.dtype)
    if knots is None or stored.zero_point != 0 or len(given) != 1:
        return None
    gap = breakpoint_spacing(knots, stored)
    return Lines(_heights(node, torch.arange(-knots // 2, knots // 2 + 1) * gap, given.pop()), gap)


def _heights(node: Node, x: Tensor, s: QParams) -> Tensor:
    """In float32, as tables are made. A pole is as large as can be stored; what is no number is read by nobody."""
    made: Tensor = node.target(x.float(), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    steps = quantize(made.nan_to_num(), s.scale, s.zero_point, s.qmin, s.qmax, getattr(torch, s.dtype))
    return (steps.double() - s.zero_point) * s.scale
