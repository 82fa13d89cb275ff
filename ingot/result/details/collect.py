"""From a casting and its evidence to what a report shows: looked at once, handed on as plain data."""

from __future__ import annotations

from typing import Any

from ingot.core.fx import has_symbols, is_float, value_of
from ingot.result.casting import Casting
from ingot.result.details.model import Details
from ingot.result.details.nodes import nodes_of
from ingot.result.details.recorded import recorded_of, stats_of
from ingot.result.details.timing import timing_of
from ingot.result.details.versions import versions_of
from ingot.result.details.weights import weights_of

__all__ = ["Details", "details_of"]


MOST_HELD = 1 << 31  # bytes of values that are kept for the comparison


def details_of(casting: Casting) -> Details:
    """Runs the float and the quantized graph once and the artefact a few times."""
    evidence = casting.evidence
    if evidence is None:
        note = "this casting was made without its graphs: only what is in its own fields is shown"
        return Details(versions=versions_of(None), notes=(note,))
    errors, notes = _errors(evidence)
    nodes = nodes_of(casting, stats_of(evidence.ranges), errors)
    recorded = None if evidence.ranges is None else recorded_of(evidence.ranges)
    return Details(
        nodes, weights_of(casting), recorded, timing_of(casting), versions_of(evidence.target), notes
    )  # fmt: skip


def _errors(evidence: Any) -> tuple[dict[str, float], tuple[str, ...]]:
    from ingot.verify.localize.graph_errors import sqnr_by_value

    batch = evidence.program.example_inputs if evidence.batch is None else evidence.batch
    if (held := _held(evidence.program.module)) > MOST_HELD:
        return {}, (f"errors along the network were not looked for: its values take {held:,} bytes at once",)
    try:
        return sqnr_by_value(evidence.program, evidence.quantized, batch), ()
    except Exception as e:  # whatever an op throws here: the casting is good, and is told of without this
        return {}, (f"errors along the network are not known: {type(e).__name__}: {e}",)


def _held(module: Any) -> int:
    """Bytes of all float values of the example's size."""
    values = [value_of(n) for n in module.graph.nodes if n.op == "call_function" and is_float(n)]
    return sum(v.numel() * v.element_size() for v in values if not has_symbols(v.shape))
