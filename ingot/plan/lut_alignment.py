"""Scales for functions that a backend interpolates between the breakpoints of a lookup table (LUT).

A breakpoint beyond the range of the result saturates, and the segment before it gets a wrong slope: a SiLU in int16 was
19 steps off. A slope discontinuity of the function (hard swish at -3) between two breakpoints is cut off: 10 steps.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.plan.noise_model import PointwiseFunction
from ingot.plan.plan_data import QParams
from ingot.plan.pointwise_consumers import pointwise_function
from ingot.plan.qparams import qparams_for
from ingot.plan.solver_state import SolverState
from ingot.plan.value_ranges import ValueRange, hull, width

# The largest widening of a range: near a pole none would do, nor for discontinuities next to zero.
MAX_WIDENING = 1 / 8
GRID = np.arange(-8, 8, 2**-6)  # where discontinuities are looked for


def align_luts(state: SolverState) -> None:
    """In graph order: the scale of a function's input is final before that of its result."""
    for node in state.precisions:
        entries = state.target.numerics.lut_entries.get(state.precisions[node])
        function = _lut_function(node, state) if entries else None
        if entries and function is not None:
            _align_input(node, function, entries, state)
            _widen_result(node, function, entries, state)


def _lut_function(node: Node, state: SolverState) -> PointwiseFunction | None:
    """None for a fused activation, which has no quantization points of its own."""
    quantized = {(node, 0), (node, None)} <= state.qparams.keys()
    return pointwise_function(node) if quantized and state.target.kernels.is_lut(node) else None


def _align_input(node: Node, function: PointwiseFunction, entries: int, state: SolverState) -> None:
    """A slightly larger input scale puts breakpoints on the discontinuities, if all are equally far from zero."""
    qparams, distances = state.qparams[node, 0], set(np.abs(slope_discontinuities(function)).tolist()) - {0.0}
    spacing = breakpoint_spacing(entries, qparams)
    segments = math.floor(max(distances) / spacing) if len(distances) == 1 else 0
    if segments * MAX_WIDENING >= 1:
        scale = qparams.scale * max(distances) / (segments * spacing)
        why = f"scale enlarged: LUT breakpoints on the slope discontinuities of {node.name}"
        state.replace_qparams((node, 0), replace(qparams, scale=scale), why)


def slope_discontinuities(function: PointwiseFunction) -> np.ndarray:
    """Where the slope jumps: there a second difference shrinks with the step, elsewhere with its square."""
    wide, narrow = (np.abs(function(GRID + d) - 2 * function(GRID) + function(GRID - d)) for d in (2**-7, 2**-8))
    found = np.isfinite(wide) & (wide > 1e-4) & (wide < 2.5 * narrow)
    return GRID[found]


def _widen_result(node: Node, function: PointwiseFunction, entries: int, state: SolverState) -> None:
    now = state.qparams[node, None].representable_range
    needed = hull([now, _range_at_breakpoints(node, function, entries, state)])
    if width(needed) > width(now):
        wider = qparams_for(*needed, state.format_of((node, None)))
        state.replace_qparams((node, None), wider, f"range widened to the outermost LUT breakpoints of {node.name}")


def _range_at_breakpoints(node: Node, function: PointwiseFunction, entries: int, state: SolverState) -> ValueRange:
    """The range of the function at the outermost breakpoints in use, within MAX_WIDENING."""
    (low, high), read = state.constraints.value_range(node), state.constraints.value_range(operands(node)[0])
    step, more = breakpoint_spacing(entries, state.qparams[node, 0]), (high - low) * MAX_WIDENING
    found = function(np.array([math.floor(read[0] / step), math.ceil(read[1] / step)]) * step)
    ends = np.clip(found[np.isfinite(found)], low - more, high + more).tolist()
    return min([low, *ends]), max([high, *ends])


def breakpoint_spacing(entries: int, qparams: QParams) -> float:
    """Between two breakpoints of a table over all integers of the type. Zero is a breakpoint."""
    return 2 ** torch.iinfo(getattr(torch, qparams.dtype)).bits / entries * qparams.scale  # type: ignore[operator,no-any-return]
