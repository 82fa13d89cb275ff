"""Collect the details of a casting for the report, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.core.fx import has_symbols, is_float_op, value_of
from ingot.core.torch_modes import in_neutral_modes
from ingot.result.details.calibration import calibration_summary, stats_of
from ingot.result.details.nodes import nodes_of
from ingot.result.details.records import Details
from ingot.result.details.timing import timing_of
from ingot.result.details.versions import versions_of
from ingot.result.details.weights import weights_of

MAX_VALUE_BYTES = 1 << 31  # of all values that are kept for the comparison

if TYPE_CHECKING:
    from ingot.result.casting import Casting


@in_neutral_modes
def details_of(casting: Casting) -> Details:
    """Runs the float and the quantized graph once and the artefact a few times."""
    evidence = casting.evidence
    if evidence is None:
        note = "this casting has no graphs: the report shows only its own fields"
        return Details(versions=versions_of(None), notes=(note,))
    errors, notes = _errors(evidence)
    nodes = nodes_of(casting, stats_of(evidence.ranges), errors)
    recorded = None if evidence.ranges is None else calibration_summary(evidence.ranges)
    return Details(
        nodes, weights_of(casting), recorded, timing_of(casting), versions_of(evidence.target), notes
    )  # fmt: skip


def _errors(evidence: Any) -> tuple[dict[str, float], tuple[str, ...]]:
    from ingot.verify.localize.graph_errors import sqnr_by_value

    batch = evidence.program.example_inputs if evidence.batch is None else evidence.batch
    if (size := _value_bytes(evidence.program.module)) > MAX_VALUE_BYTES:
        return {}, (f"SQNR by value was not measured: its values take {size:,} bytes, limit {MAX_VALUE_BYTES:,}",)
    try:
        return sqnr_by_value(evidence.program, evidence.quantized, batch), ()
    except Exception as e:  # whatever an op raises here, the casting is good: report it without this part
        return {}, (f"SQNR by value is unknown: {type(e).__name__}: {e}",)


def _value_bytes(module: Any) -> int:
    """The size of all float values, for the example inputs."""
    values = [value_of(n) for n in module.graph.nodes if is_float_op(n)]
    return sum(v.numel() * v.element_size() for v in values if not has_symbols(v.shape))
