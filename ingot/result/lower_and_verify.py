"""The last steps of every cast: lower the quantized graph, run the artefact, judge it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from ingot.calibrate.held_out import CheckData
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.capture.inputs import Batch, own_batches
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check
from ingot.core.progress import Steps
from ingot.errors import ArtefactError, MismatchError
from ingot.lower.edge import MAIN_METHOD, lower_graph
from ingot.plan.plan_data import Plan
from ingot.result.casting import Casting
from ingot.targets.base import Target
from ingot.verify.check import Evidence, disagrees_with_graph, verify_artefact
from ingot.verify.localize.diagnose import diagnose
from ingot.verify.localize.finding import Finding


def lowered(
    program: Program, form: Program, quantized: Any, plan: Plan, target: Target, recipe: Recipe, steps: Steps,
    others: Mapping[str, tuple[Program, Any]] | None = None, in_double: bool = True,
) -> Casting:  # fmt: skip
    target.runner.warm_up()
    with steps("lower"):
        done = lower_graph(form, quantized, plan, target, others)
    parts = {MAIN_METHOD: (form, quantized), **(others or {})}
    kept = {
        name: Evidence(*parts[name], target, recipe, m.io, m.delegates, name, m.host_ops, in_double)
        for name, m in done.methods.items()
    }
    main = done.methods[MAIN_METHOD]
    performance = tuple(p for d in main.delegates if (p := target.runner.estimate(d.files)) is not None)
    evidence = replace(kept.pop(MAIN_METHOD), others=kept)
    return Casting(
        target.name, done.pte, main.delegates, main.host_ops, main.io, plan, None, dict(steps.seconds),
        (*program.notes, *plan.notes), performance, hosted=main.host_op_values, evidence=evidence,
    )  # fmt: skip


def verified(
    casting: Casting, data: CheckData, steps: Steps, on_mismatch: str, ranges: Ranges | None = None
) -> Casting:
    kept = data.batches
    with steps("verify"):
        check = replace(_verify_or_keep(casting, kept, on_mismatch), judged_on=data.source)
    seen = replace(casting.needed_evidence, ranges=ranges, batch=casting.needed_evidence.program.flatten(kept[0]))
    casting = replace(casting, evidence=seen)
    done = casting.checked(check, steps.seconds)
    if not check.passed and on_mismatch == "raise":
        raise _mismatch(done)
    return done


def _verify_or_keep(casting: Casting, kept: Sequence[Batch], on_mismatch: str) -> Check:
    """With on_mismatch='keep' an artefact that does not even run is handed over too, marked as failed."""
    try:
        return check_of(casting, kept)
    except ArtefactError as e:
        if on_mismatch == "raise":
            raise
        return Check(casting.needed_evidence.target.runner.executed_on(), 0, (), passed=False, culprit=str(e))


def check_of(casting: Casting, batches: Iterable[Batch]) -> Check:
    """Executed and compared; where the artefact leaves its own graph, with the op at which it does."""
    chosen = own_batches(batches)
    check = run_and_compare(casting, chosen)
    if check.passed or not disagrees_with_graph(check, casting.needed_evidence.recipe):
        return check
    with suppress(Exception):  # the check stands, whatever happens while looking for where the error starts
        check = replace(check, culprit=localized(casting, chosen).culprit or check.culprit)
    return check


def run_and_compare(casting: Casting, batches: Iterable[Batch]) -> Check:
    """With no more said of a culprit than the graphs tell."""
    evidence = casting.needed_evidence
    with _naming_kernels(casting):
        return verify_artefact(casting.pte, evidence, (evidence.program.flatten(b) for b in batches))


def localized(casting: Casting, batches: Iterable[Batch]) -> Finding:
    """Where the error starts, and whose it is."""
    flat = [casting.needed_evidence.program.flatten(b) for b in own_batches(batches)]
    with _naming_kernels(casting):
        return diagnose(casting, flat)


@contextmanager
def _naming_kernels(casting: Casting) -> Iterator[None]:
    try:
        yield
    except ArtefactError as e:
        raise _missing_kernel(e, casting) or e from e.__cause__


def _missing_kernel(error: ArtefactError, casting: Casting) -> ArtefactError | None:
    """The runtime names the op that has no kernel, or one that refuses; the user's line of it is known here."""
    missing = re.search(r"Missing operator: \[\d+\] \w+::(\w+)", error.why or "")
    refused = re.search(r"KernelCall failed at instruction [\d:]+ in operator \w+::(\w+)", error.why or "")
    said = missing or refused
    op = next((o for o in casting.host_ops if said and o.op.split(".")[-2] == said[1]), None)
    if op is None:
        return None
    check = re.search(r"Check failed \((.*?)\): ?([^|]*)", error.why or "")
    kernel = "has no host kernel for it" if missing else "has a host kernel that refuses these arguments"
    why = f"{op.reason}, and the runtime here {kernel}{f': {(check[2] or check[1]).strip()}' if check else ''}"
    hint = "write it with other ops, or give the runtime a kernel for it and verify there"
    return ArtefactError(f"nothing can run {op.op}", where=f"{op.name} ({op.source})", why=why, hint=hint)


def _mismatch(casting: Casting) -> MismatchError:
    check = casting.check
    assert check is not None
    bad = [f"{o.name}: {o.problem}" for o in check.outputs if o.problem]
    strayed = disagrees_with_graph(check, casting.needed_evidence.recipe)
    hint = "read plan.why() of that value, give more calibration data, or inspect it with on_mismatch='keep'"
    reduced = "cut it down with ingot.reduce(…) or `ingot localize … --reduce repro.py`, and report that to the backend"
    return MismatchError(
        f"the {casting.target} artefact is wrong",
        check=check,
        where=check.culprit,
        why="; ".join(bad),
        hint=reduced if strayed else hint,
    )
