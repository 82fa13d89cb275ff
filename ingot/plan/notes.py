"""The notes of a plan: predicted SQNR, weighted ops in float, clipped ranges, mask fill values, int4 weights."""

from __future__ import annotations

from collections.abc import Iterator

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.plan.solver_state import SolverState, value_at


def notes_of(state: SolverState) -> Iterator[str]:
    if (modelled := state.predicted.modelled_sqnr_db) is not None:
        yield f"SQNR by the noise model: {modelled:.1f} dB"
    yield from _int4_weights(state)
    yield from _float_ops(state)
    yield from _clipped_ranges(state)
    for value, (low, high) in state.constraints.mask_fills.items():
        yield (
            f"{value.name} contains mask fill values; they are excluded from range estimation: "
            f"its range is {low:.4g} … {high:.4g}"
        )


def _int4_weights(state: SolverState) -> Iterator[str]:
    if not state.recipe.int4_sqnr_budget_db:
        return
    if not state.target.numerics.int4_weights:
        yield f"{state.target.name} has no int4 weights: int4_sqnr_budget_db has no effect"
    elif not state.target.numerics.packs_int4:
        yield f"{state.target.name} stores each int4 weight in a byte: int4_sqnr_budget_db has no effect"
    else:
        yield f"int4 weights: {len(state.weight_formats)} ops"


def _clipped_ranges(state: SolverState) -> Iterator[str]:
    """Given qparams that do not cover the measured range."""
    for point, (qparams, rule) in state.fixed_qparams.items():
        low, high = state.constraints.value_range(value_at(point))
        qlow, qhigh = qparams.representable_range
        if low < qlow - qparams.scale or high > qhigh + qparams.scale:  # type: ignore[operator]
            covered = f"{qlow:.4g} … {qhigh:.4g}"
            yield f"{rule} covers {covered}, but the measured range is {low:.4g} … {high:.4g}: values are clipped"


def _float_ops(state: SolverState) -> Iterator[str]:
    """Ops with float weights: they save no memory."""
    weighted = [n for n in state.precisions if weight_axis(n) is not None and not n.meta.get("ingot_float")]
    in_float = [n for n in weighted if not state.is_integer(n) and n not in state.dynamic]
    if in_float:
        first = f"{in_float[0].name} ({state.reasons[in_float[0]]})"
        yield f"{len(in_float)} of {len(weighted)} ops with weights stay float; the first: {first}"
    if state.dynamic:
        yield f"{len(state.dynamic)} of {len(weighted)} ops with weights quantize their input at run time"
    elif not any(map(state.is_integer, state.precisions)):
        yield "no op of this model is quantized"
