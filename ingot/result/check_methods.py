"""The check of a program with several sizes: each batch runs the method of its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ingot.capture.inputs import Batch, flat_inputs
from ingot.capture.method_for import MAIN_METHOD, method_for, sizes_text
from ingot.core.artefact import Check
from ingot.result.casting import Casting
from ingot.verify.check import outputs_on_made, verify_artefact


def has_sizes(casting: Casting) -> bool:
    """The methods are one model at several sizes."""
    return bool(casting.plan.methods)


def by_method(casting: Casting, batches: Iterable[Batch]) -> dict[str, list[Batch]]:
    """The batches of each method, in the order of the methods."""
    if not has_sizes(casting):
        return {casting.method: list(batches)}
    programs = {name: m.needed_evidence.program for name, m in casting.methods.items()}
    found: dict[str, list[Batch]] = {name: [] for name in programs}
    for batch in batches:
        found[method_for(programs, batch)].append(batch)
    return found


def check_methods(casting: Casting, batches: Iterable[Batch]) -> Check:
    """All methods, each on the batches of its size; one without a batch on an input that was made."""
    checks = {n: _check(casting, n, some) for n, some in by_method(casting, batches).items()}
    return _joined(checks) if has_sizes(casting) else checks[casting.method]


def _check(whole: Casting, name: str, batches: list[Batch]) -> Check:
    casting, evidence = whole.methods[name], whole.methods[name].needed_evidence
    if batches or not has_sizes(whole):
        return verify_artefact(casting.pte, evidence, (flat_inputs(evidence.program, b) for b in batches))
    example = evidence.program.example_inputs
    outputs = outputs_on_made(casting.pte, evidence, example)
    note = f"no batch has the size {sizes_text(example)}: executed on a cropped or repeated example, equal to its graph"
    passed = all(o.problem is None for o in outputs)
    return Check(evidence.target.runner.executed_on(), 0, outputs, passed, notes=(note,) if passed else ())


def _joined(checks: Mapping[str, Check]) -> Check:
    """Outputs of further methods are prefixed with the name of their method."""
    first = next(iter(checks.values()))
    outputs = tuple(replace(o, name=_prefixed(n, o.name)) for n, c in checks.items() for o in c.outputs)
    notes = tuple(_prefixed(n, note) for n, c in checks.items() for note in c.notes)
    culprit = next((_prefixed(n, c.culprit) for n, c in checks.items() if c.culprit), None)
    passed, batches = all(c.passed for c in checks.values()), sum(c.batches for c in checks.values())
    return replace(
        first, batches=batches, outputs=outputs, passed=passed, culprit=culprit, notes=notes, methods=dict(checks)
    )


def _prefixed(method: str, text: str) -> str:
    return text if method == MAIN_METHOD else f"{method}: {text}"


def failing(casting: Casting, check: Check) -> str:
    """The method to look for an error in."""
    return next((n for n, c in check.methods.items() if not c.passed), casting.method)


def checked_methods(casting: Casting, check: Check) -> Casting:
    """Each further method with the check of its own."""
    kept = {n: replace(c, judged_on=check.judged_on) for n, c in check.methods.items()}
    return replace(casting, others={n: replace(m, check=kept.get(n, m.check)) for n, m in casting.others.items()})
