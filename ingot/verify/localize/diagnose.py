"""The cause of an error: rounding, the backend, or a file that does not match its plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from ingot.core.deadline import Deadline, OutOfTime
from ingot.core.fx import source_of
from ingot.core.progress import Tick, nothing_to_report
from ingot.errors import InputError
from ingot.verify.check import Evidence, run_artefact, run_graph, run_quantized
from ingot.verify.localize.finding import Finding, ValueCheck
from ingot.verify.localize.graph_errors import describe_drop, largest_drop, sqnr_by_value
from ingot.verify.localize.intermediate_outputs import Batches, ObservedValue
from ingot.verify.localize.isolated_op import error_in_steps, isolated_error, most_divergent_op
from ingot.verify.localize.observed_values import (
    ArtefactProbe,
    diverges_from_graph,
    evenly_spaced,
    limited,
    within,
)
from ingot.verify.metrics import measure

if TYPE_CHECKING:
    from ingot.result.casting import Casting

MOST_BATCHES = 8  # intermediate values of more would fill the memory
Verdict = tuple[str, str, str | None]  # kind, sentence, value


def diagnose(
    casting: Casting, batches: Batches, tick: Tick = nothing_to_report, seconds: float | None = None
) -> Finding:
    """Compare the float program, the quantized graph and the artefact, value by value.

    It ends after `seconds` (default: `localize_seconds` of the recipe), with what is known by then.
    """
    evidence: Evidence = casting.needed_evidence
    chosen = list(islice(batches, evidence.recipe.verify_batches or MOST_BATCHES))
    if not chosen:
        raise InputError("no batches to localize with", hint="give at least one input tuple")
    deadline = Deadline(evidence.recipe.localize_seconds if seconds is None else seconds)
    usual = casting.timings.get("lower", 0.0)
    errors = sqnr_by_value(evidence.program, evidence.quantized, chosen[0])
    probe = ArtefactProbe(evidence, casting.plan, chosen, deadline, usual, lambda n: tick(n, None))
    try:
        verdict = _verdict(probe, casting.pte, errors)
    except OutOfTime:
        verdict = _unfinished(probe)
    return _finding(probe, casting, verdict, errors)


def _verdict(probe: ArtefactProbe, pte: bytes, errors: dict[str, float]) -> Verdict:
    outputs = _outputs(pte, probe)
    probe.observe(evenly_spaced(list(probe.observable)))
    wrong = [n for n, v in outputs.items() if diverges_from_graph(v)]
    if wrong and not probe.diverges(wrong[0]):
        return _not_reproduced(probe, wrong[0])
    worst = largest_drop(probe.evidence.program, errors)
    return _backend_error(probe, bool(wrong)) or _rounding_error(probe, outputs, errors, worst)


def _finding(probe: ArtefactProbe, casting: Casting, verdict: Verdict, errors: dict[str, float]) -> Finding:
    (kind, sentence, value), evidence = verdict, probe.evidence
    worst = largest_drop(evidence.program, errors)
    return Finding(
        casting.target, evidence.target.runner.executed_on(), kind, sentence, _culprit(probe, verdict, errors), value,
        _table(probe, errors), worst.name if worst else None, value if kind == "backend" else None, probe.lowerings,
        _notes(probe, casting),
    )  # fmt: skip


def _outputs(pte: bytes, probe: ArtefactProbe) -> dict[str, ObservedValue]:
    """The outputs of the artefact itself, as verification compares them.

    If the first batch shows the error, it is enough to find it with: the others are left out from here on.
    """
    first, rest = probe.batches[:1], probe.batches[1:]
    if probe.evidence.program.state or not rest:
        return _outputs_on(pte, probe, probe.batches)
    outputs = _outputs_on(pte, probe, first)
    if any(diverges_from_graph(v) for v in outputs.values()):
        probe.batches = first
        return outputs
    return {
        n: v.joined(more) for (n, v), more in zip(outputs.items(), _outputs_on(pte, probe, rest).values(), strict=True)
    }


def _outputs_on(pte: bytes, probe: ArtefactProbe, batches: Batches) -> dict[str, ObservedValue]:
    probe.deadline.need()
    program, evidence = probe.evidence.program, probe.evidence
    with within(probe.deadline):
        artefact = run_artefact(pte, limited(evidence, probe.deadline, len(batches)), batches)
    runs = (run_graph(program.module, batches, program.state), run_quantized(evidence, batches), artefact)
    names = program.output_names
    return {n: ObservedValue(*([batch[i] for batch in run] for run in runs)) for i, n in enumerate(names)}


def _unfinished(probe: ArtefactProbe) -> Verdict:
    """Between which values it starts, as far as they were observed."""
    seen = sorted(probe.observed, key=probe.order.__getitem__)
    bad = next((n for n in seen if probe.diverges(n)), None)
    good = [n for n in seen if not probe.diverges(n) and (bad is None or probe.order[n] < probe.order[bad])]
    known = [f"{_place(probe.nodes[good[-1]])} still agrees with the graph"] if good else []
    known += [f"{_place(probe.nodes[bad])} does not"] if bad else []
    said = ", ".join(known) or "no intermediate value was read by then"
    ended = f"the search for the op ended after localize_seconds = {probe.evidence.recipe.localize_seconds:g}"
    return "unfinished", f"{ended}: {said}; give it more seconds, or minify the model with --reduce repro.py", bad


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
    bad = [n for n, v in outputs.items() if diverges_from_graph(v) or _is_far(v, threshold)]
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


def _culprit(probe: ArtefactProbe, verdict: Verdict, errors: dict[str, float]) -> str | None:
    kind, sentence, name = verdict
    if kind == "unfinished":
        return sentence
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
