"""Lookup tables (LUT) of int16 functions, as a backend has them: few entries, linear interpolation between them.

Each entry is the function's value, rounded to the qparams of its result. The tables are derived from the function,
never from the lowered program, so the quantized graph predicts what the backend should compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, is_call
from ingot.plan.lut_alignment import breakpoint_spacing
from ingot.plan.plan_data import QParams
from ingot.quantize.audit import qdq_qparams
from ingot.targets.base import Target


@dataclass(frozen=True)
class LookupTable:
    """The function's values at evenly spaced breakpoints; the middle one is at zero."""

    entries: Tensor
    spacing: float

    def __call__(self, x: Tensor) -> Tensor:
        position = x.double() / self.spacing + len(self.entries) // 2
        left = position.floor().clamp(0, len(self.entries) - 2)
        low, high = self.entries[left.long()], self.entries[left.long() + 1]
        return low + (high - low) * (position - left)


def lookup_tables(module: GraphModule, target: Target) -> dict[Node, LookupTable]:
    """By op, for the ops that the target interpolates."""
    found = {n: _table(n, target) for n in calls(module) if target.numerics.lut_entries and target.kernels.is_lut(n)}
    return {n: table for n, table in found.items() if table is not None}


def _table(node: Node, target: Target) -> LookupTable | None:
    read, users = node.all_input_nodes[0], list(node.users)
    if not is_call(read, "dequantize_per_tensor") or not all(is_call(u, "quantize_per_tensor") for u in users):
        return None
    stored, given = qdq_qparams(read), {qdq_qparams(u) for u in users}
    count = target.numerics.lut_entries.get(stored.dtype)
    if count is None or stored.zero_point != 0 or len(given) != 1:
        return None
    spacing = breakpoint_spacing(count, stored)
    return LookupTable(_entries(node, torch.arange(-count // 2, count // 2 + 1) * spacing, given.pop()), spacing)


def _entries(node: Node, x: Tensor, s: QParams) -> Tensor:
    """In float32, as backends compute their tables. A pole saturates. NaN becomes 0: no input reaches that entry."""
    made: Tensor = node.target(x.float(), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    steps = quantize(made.nan_to_num(), s.scale, s.zero_point, s.qmin, s.qmax, getattr(torch, s.dtype))
    return (steps.double() - s.zero_point) * s.scale
