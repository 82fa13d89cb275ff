"""The cause of an error: rounding, the backend, or a file that does not match its plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from ingot.core.fx import source_of
from ingot.errors import InputError
from ingot.verify.check import Evidence, run_artefact, run_graph, run_quantized
from ingot.verify.localize.finding import Finding, ValueCheck
from ingot.verify.localize.graph_errors import describe_drop, largest_drop, sqnr_by_value
from ingot.verify.localize.intermediate_outputs import Batches, ObservedValue
from ingot.verify.localize.isolated_op import error_in_steps, isolated_error, most_divergent_op
from ingot.verify.localize.observed_values import ArtefactProbe, diverges_from_graph, evenly_spaced
from ingot.verify.metrics import measure

if TYPE_CHECKING:
    from ingot.result.casting import Casting

MOST_BATCHES = 8  # intermediate values of more would fill the memory
Verdict = tuple[str, str, str | None]  # kind, sentence, value


def diagnose(casting: Casting, batches: Batches) -> Finding:
    """Compare the float program, the quantized graph and the artefact, value by value."""
    evidence: Evidence = casting.needed_evidence
    chosen = list(islice(batches, evidence.recipe.verify_batches or MOST_BATCHES))
    if not chosen:
        raise InputError("no batches to localize with", hint="give at least one input tuple")
    probe = ArtefactProbe(evidence, casting.plan, chosen)
    outputs = _outputs(casting.pte, evidence, chosen)
    errors = sqnr_by_value(evidence.program, evidence.quantized, chosen[0])
    worst = largest_drop(evidence.program, errors)
    probe.observe(evenly_spaced(list(probe.observable)))
    wrong = [n for n, v in outputs.items() if diverges_from_graph(evidence, v)]
    if wrong and not probe.diverges(wrong[0]):
        kind, sentence, value = _not_reproduced(probe, wrong[0])
    else:
        kind, sentence, value = _backend_error(probe, bool(wrong)) or _rounding_error(probe, outputs, errors, worst)
    return Finding(
        casting.target, evidence.target.runner.executed_on(), kind, sentence, _culprit(probe, kind, value, errors),
        value,
        _table(probe, errors), worst.name if worst else None, value if kind == "backend" else None, probe.lowerings,
        _notes(probe, casting),
    )  # fmt: skip


def _outputs(pte: bytes, evidence: Evidence, batches: Batches) -> dict[str, ObservedValue]:
    """The outputs of the artefact itself, as verification compares them."""
    program = evidence.program
    float_ = run_graph(program.module, batches, program.state)
    runs = (float_, run_quantized(evidence, batches), run_artefact(pte, evidence, batches))
    names = program.output_names
    return {n: ObservedValue(*([batch[i] for batch in run] for run in runs)) for i, n in enumerate(names)}


def _backend_error(probe: ArtefactProbe, failed: bool) -> Verdict | None:
    """An op that disagrees with the graph; searched for even if the outputs pass, since an average may hide it."""
    if not failed and all(_agrees(probe, n) for n in probe.observed):
        return None
    name, error = most_divergent_op(probe)
    if not error.differs:
        return None
    place = _place(probe.nodes[name])
    return (
        "backend",
        f"the backend's kernel for {place} disagrees with the quantized graph on the same inputs: {error}",
        name,
    )


def _agrees(probe: ArtefactProbe, name: str) -> bool:
    error = isolated_error(probe, name)
    return not error.differs or error.db >= probe.evidence.recipe.min_faithful_db


def _not_reproduced(probe: ArtefactProbe, wrong: str) -> Verdict:
    """The error disappears with extra outputs: is the file wrong, or do extra outputs change the kernels?"""
    probe.observe([])
    if probe.diverges(wrong):
        why = "the error disappears when intermediate values are returned: the backend fuses ops differently then"
        return "hidden", f"{why}; --reduce finds the smallest model that has it", None
    why = "lowered again from this model and plan, the outputs are right"
    return "file", f"the file is not what this plan lowers to: {why}; was it made from other weights or versions?", None


def _rounding_error(
    probe: ArtefactProbe, outputs: dict[str, ObservedValue], errors: dict[str, float], worst: Node | None
) -> Verdict:
    """Every op agrees with the graph; how far is the graph from the float program?"""
    threshold = probe.evidence.recipe.min_sqnr_db
    bad = [n for n, v in outputs.items() if diverges_from_graph(probe.evidence, v) or _is_far(v, threshold)]
    if worst is None:
        return "none", "artefact and quantized graph agree, and no value is rounded", None
    place, db = _place(worst), errors[worst.name]
    if bad:
        advice = _advice(probe, worst.name)
        return "rounding", f"rounding: the plan is too coarse at {place}, SQNR {db:.1f} dB; {advice}", worst.name
    sentence = "nothing is wrong: artefact and quantized graph agree; rounding costs most at"
    return "none", f"{sentence} {place}, SQNR {db:.1f} dB", worst.name


def _is_far(output: ObservedValue, threshold: float) -> bool:
    result = measure(output.reference, output.artefact)
    return result.defect is not None or not result.sqnr_db >= threshold


def _advice(probe: ArtefactProbe, name: str) -> str:
    """A line of a recipe: the next wider precision that the target has."""
    qparams, formats = probe.plan.qparams(name), probe.evidence.target.numerics.formats
    now = qparams.dtype if qparams else "int8"
    wider = "int16" if "int16" in formats and now == "int8" else "float"
    return f'try scopes = [{{ name = "{name}", precision = "{wider}" }}] in a recipe, or read `ingot why` of it'


def _place(node: Node) -> str:
    return f"{node.name} ({source_of(node)})"


def _culprit(probe: ArtefactProbe, kind: str, name: str | None, errors: dict[str, float]) -> str | None:
    if kind == "none" or name is None:
        return None
    if kind == "backend":
        value = probe.observed[name]
        db = measure(value.quantized, value.artefact).sqnr_db
        return f"{_place(probe.nodes[name])}: artefact and quantized graph disagree from here on, SQNR {db:.1f} dB"
    return describe_drop(probe.nodes[name], errors) if name in errors else _place(probe.nodes[name])


def _table(probe: ArtefactProbe, errors: dict[str, float]) -> tuple[ValueCheck, ...]:
    names = [n for n in probe.order if n in errors or n in probe.observed]
    return tuple(_row(probe, n, errors.get(n)) for n in names)


def _row(probe: ArtefactProbe, name: str, graph_db: float | None) -> ValueCheck:
    node, qparams, value = probe.nodes[name], probe.plan.qparams(name), probe.observed.get(name)
    stored = qparams.dtype if qparams else "float" if name in probe.observable else "fused"
    row = ValueCheck(name, str(node.target), source_of(node), stored, graph_db)
    if value is None:
        return row
    db = measure(value.quantized, value.artefact).sqnr_db
    flat = [torch.cat([t.double().reshape(-1) for t in side]) for side in (value.quantized, value.artefact)]
    return replace(row, artefact_db=db, steps=error_in_steps(qparams, *flat))


def _notes(probe: ArtefactProbe, casting: Casting) -> tuple[str, ...]:
    """Extra outputs should not change the number of delegates; a note if they do."""
    usual = len(casting.delegates)
    other = sorted(probe.delegates - {usual})
    return (f"with intermediate values returned there are {other[0]} delegates, not {usual}",) if other else ()
