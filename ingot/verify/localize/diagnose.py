"""Whose error it is: rounding, the backend, or a file that is not what it seems; in one sentence."""

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
from ingot.verify.localize.graph_errors import coarsest, error_along, told
from ingot.verify.localize.intermediate_outputs import Batches, Seen
from ingot.verify.localize.isolated_op import alone, first_wrong, steps
from ingot.verify.localize.search import Search, spread, strays
from ingot.verify.metrics import measure

if TYPE_CHECKING:
    from ingot.result.casting import Casting

Verdict = tuple[str, str, str | None]  # kind, sentence, value


def find(casting: Casting, batches: Batches) -> Finding:
    """Compare the float program, the quantized graph and the artefact, value by value."""
    evidence: Evidence = casting.needed_evidence
    chosen = list(islice(batches, evidence.recipe.verify_batches))
    if not chosen:
        raise InputError("no batches to look at", hint="give at least one input tuple")
    search = Search(evidence, casting.plan, chosen)
    outputs = _outputs(casting.pte, evidence, chosen)
    errors = error_along(evidence.program, evidence.quantized, chosen[0])
    worst = coarsest(evidence.program, errors)
    search.look(spread(list(search.taps)))
    wrong = [n for n, v in outputs.items() if strays(evidence, v)]
    if wrong and not search.strays(wrong[0]):
        kind, sentence, value = _gone(search, wrong[0])
    else:
        kind, sentence, value = _backend(search, bool(wrong)) or _rounded(search, outputs, errors, worst)
    return Finding(
        casting.target, evidence.target.runner.executed_on(), kind, sentence, _culprit(search, kind, value, errors),
        value,
        _table(search, errors), worst.name if worst else None, value if kind == "backend" else None, search.lowerings,
        _notes(search, casting),
    )  # fmt: skip


def _outputs(pte: bytes, evidence: Evidence, batches: Batches) -> dict[str, Seen]:
    """The artefact itself, as verification sees it."""
    program = evidence.program
    float_ = run_graph(program.module, batches, program.state)
    runs = (float_, run_quantized(evidence, batches), run_artefact(pte, evidence, batches))
    names = program.output_names
    return {n: Seen(*([batch[i] for batch in run] for run in runs)) for i, n in enumerate(names)}


def _backend(search: Search, failed: bool) -> Verdict | None:
    """An op that is not what the graph says; outputs that average may hide it."""
    if not failed and all(_is_near(search, n) for n in search.seen):
        return None
    name, apart = first_wrong(search)
    if not apart.differs:
        return None
    said = f"given the same numbers it is {apart}"
    place = _place(search.nodes[name])
    return "backend", f"the backend computes {place} otherwise than the quantized graph says: {said}", name


def _is_near(search: Search, name: str) -> bool:
    apart = alone(search, name)
    return not apart.differs or apart.db >= search.evidence.recipe.min_faithful_db


def _gone(search: Search, wrong: str) -> Verdict:
    """Right when values inside are returned too: is the file at fault, or looking?"""
    search.look([])
    if search.strays(wrong):
        why = "the error goes away when values inside are returned too: kernels that are merged when nobody looks"
        return "hidden", f"{why}; --reduce finds the smallest model that has it", None
    why = "lowered again from this model and plan, the numbers are right"
    return (
        "file",
        f"the file is not what it should be: {why}; was it made from other weights, or by other versions?",
        None,
    )


def _rounded(search: Search, outputs: dict[str, Seen], errors: dict[str, float], worst: Node | None) -> Verdict:
    """Every op is what the graph says; how far is that from the float program?"""
    bar = search.evidence.recipe.min_sqnr_db
    bad = [n for n, v in outputs.items() if strays(search.evidence, v) or _is_far(v, bar)]
    if worst is None:
        return "none", "the artefact computes its quantized graph, and nothing in that is rounded", None
    place, db = _place(worst), errors[worst.name]
    if bad:
        return (
            "rounding",
            f"rounding: the plan is too coarse at {place}, {db:.1f} dB; {_advice(search, worst.name)}",
            worst.name,
        )
    sentence = (
        f"nothing is wrong: the artefact computes its quantized graph; rounding costs most at {place}, {db:.1f} dB"
    )
    return "none", sentence, worst.name


def _is_far(output: Seen, bar: float) -> bool:
    apart = measure(output.wanted, output.made)
    return apart.fault is not None or not apart.sqnr_db >= bar


def _advice(search: Search, name: str) -> str:
    """A line of a recipe: the next wider form that the target has."""
    storage, formats = search.plan.qparams(name), search.evidence.target.numerics.formats
    now = storage.dtype if storage else "int8"
    wider = "int16" if "int16" in formats and now == "int8" else "float"
    return f'try scopes = [{{ name = "{name}", precision = "{wider}" }}] in a recipe, or read `ingot why` of it'


def _place(node: Node) -> str:
    return f"{node.name} ({source_of(node)})"


def _culprit(search: Search, kind: str, name: str | None, errors: dict[str, float]) -> str | None:
    if kind == "none" or name is None:
        return None
    if kind == "backend":
        db = measure(search.seen[name].graph, search.seen[name].made).sqnr_db
        return f"{_place(search.nodes[name])}: the artefact leaves its quantized graph here, {db:.1f} dB between them"
    return told(search.nodes[name], errors) if name in errors else _place(search.nodes[name])


def _table(search: Search, errors: dict[str, float]) -> tuple[ValueCheck, ...]:
    names = [n for n in search.order if n in errors or n in search.seen]
    return tuple(_row(search, n, errors.get(n)) for n in names)


def _row(search: Search, name: str, graph_db: float | None) -> ValueCheck:
    node, storage, value = search.nodes[name], search.plan.qparams(name), search.seen.get(name)
    stored = storage.dtype if storage else "float" if name in search.taps else "fused"
    row = ValueCheck(name, str(node.target), source_of(node), stored, graph_db)
    if value is None:
        return row
    flat = [torch.cat([t.double().reshape(-1) for t in side]) for side in (value.graph, value.made)]
    return replace(row, artefact_db=measure(value.graph, value.made).sqnr_db, steps=steps(storage, *flat))


def _notes(search: Search, casting: Casting) -> tuple[str, ...]:
    """Looking inside must not change what is looked at; where it does, that is said."""
    usual = len(casting.delegates)
    other = sorted(search.delegates - {usual})
    return (f"with values returned it is {other[0]} delegates, not {usual}",) if other else ()
