"""Values that were zero throughout calibration: any scale represents them, so they take the scale of what they meet.

An add brings its operands to one scale. Zeros at 1/128 beside numbers of 1e-6 would leave no bit of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.plan.solver_state import Point, SolverState, quantized_operands


def fit_zero_ranges(state: SolverState) -> None:
    """The finest scale among the other operands and the results of the ops that read the zeros."""
    groups = [members for members in state.scale_groups.groups() if _is_zero(members, state)]
    zeros = {m for members in groups for m in members}
    for members in groups:
        scales = [scale for m in members for scale in _scales_beside(m, zeros, state)]
        if scales:
            why = "it was zero throughout calibration: the scale of what it is combined with"
            state.replace_qparams(members[0], replace(state.qparams[members[0]], scale=min(scales)), why)


def _is_zero(members: list[Point], state: SolverState) -> bool:
    return not state.fixed & {*members} and all(state.value_range(m) == (0.0, 0.0) for m in members)


def _scales_beside(point: Point, zeros: set[Point], state: SolverState) -> Iterator[float]:
    """Of an op without weights: the scale of a weight's bias is that of its input times that of the weight."""
    node, operand = point
    if operand is None or node.op != "call_function" or weight_axis(node) is not None:
        return
    for other in [*((node, i) for i in quantized_operands(node, state)), (node, None)]:
        qparams = state.qparams.get(other)
        if other not in zeros and qparams is not None and qparams.dtype == state.qparams[point].dtype:
            assert isinstance(qparams.scale, float)
            yield qparams.scale
