"""Zero points that make a kernel faster, where the zero point moves by one step: the range grows by at most 1/127."""

from __future__ import annotations

from dataclasses import replace

from ingot.plan.plan_data import QParams
from ingot.plan.solver_state import SolverState


def apply_preferred_zero_points(state: SolverState) -> None:
    for node in state.precisions:
        zero_wanted, qparams = state.target.kernels.prefers_zero_point_zero(node), state.qparams.get((node, 0))
        if zero_wanted is not None and qparams is not None and not state.format_of((node, 0)).symmetric:
            better = with_preferred_zero_point(qparams, zero_wanted)
            if better != qparams:
                why = f"zero point {better.zero_point}: {node.name} takes fewer cycles"
                state.replace_qparams((node, 0), better, why)


def with_preferred_zero_point(qparams: QParams, zero_wanted: bool) -> QParams:
    """Zero point ±1 becomes 0 if that is wanted; 0 becomes -1 if it is not. The range stays covered."""
    near = abs(qparams.zero_point) <= 1 if zero_wanted else qparams.zero_point == 0  # type: ignore[arg-type]
    if not near or not qparams.qmin < -1 < 0 < qparams.qmax:
        return qparams
    (low, high), zero = qparams.representable_range, 0 if zero_wanted else -1
    scale = max(low / (qparams.qmin - zero), high / (qparams.qmax - zero))
    return replace(qparams, scale=scale, zero_point=zero) if zero != qparams.zero_point else qparams
