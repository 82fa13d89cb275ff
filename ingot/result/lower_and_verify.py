"""The last steps of every cast: lower the quantized graph, run the artefact, judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ingot.calibrate.held_out import CheckData
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.capture.inputs import Batch, flat_inputs, own_batches
from ingot.capture.kv_buffers import COLUMNS, with_kv_buffers
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check
from ingot.core.progress import Silent, Steps
from ingot.errors import ArtefactError, IngotError, InputError, MismatchError
from ingot.lower.edge import MAIN_METHOD, LoweredProgram, MethodGraph, lower_graph
from ingot.lower.no_kernel_error import no_kernel_error
from ingot.plan.plan_data import Plan
from ingot.result.casting import Casting
from ingot.result.check_methods import by_method, check_methods, checked_methods, failing
from ingot.targets.base import Target
from ingot.verify.check import Evidence, disagrees_with_graph, run_artefact
from ingot.verify.localize.diagnose import diagnose
from ingot.verify.localize.finding import Finding


@dataclass(frozen=True)
class QuantizedProgram:
    """All that lowering needs."""

    program: Program  # as captured
    form: Program  # rewritten for the target
    quantized: Any
    plan: Plan
    target: Target
    recipe: Recipe
    others: Mapping[str, MethodGraph] = field(default_factory=dict)  # further methods
    in_double: bool = True


def lowered(work: QuantizedProgram, steps: Steps) -> Casting:
    target, plan = work.target, work.plan
    target.runner.warm_up()
    with steps("lower"):
        done = lower_graph(work.form, work.quantized, plan, target, work.others)
    whole = _stateful(work.form, work.quantized)
    parts = {MAIN_METHOD: MethodGraph(*whole, plan), **work.others}
    made = {name: _method(work, name, part, done, steps) for name, part in parts.items()}
    main = made.pop(MAIN_METHOD)
    notes = (*work.program.notes, *plan.notes, *main.notes)
    return replace(main, notes=notes, performance=_estimates(main, target), others=made)


def _method(work: QuantizedProgram, name: str, part: MethodGraph, done: LoweredProgram, steps: Steps) -> Casting:
    """One method of the file, as a casting of its own."""
    m, program = done.methods[name], replace(part.program, others={}) if part.program.others else part.program
    evidence = Evidence(
        program, part.quantized, work.target, work.recipe, m.io, m.delegates, name, m.host_ops, work.in_double
    )
    return Casting(
        work.target.name, done.pte, m.delegates, m.host_ops, m.io, part.plan, None, dict(steps.seconds), m.notes,
        hosted=m.host_op_values, evidence=evidence, method=name,
    )  # fmt: skip


def _estimates(casting: Casting, target: Target) -> tuple[Any, ...]:
    return tuple(p for d in casting.delegates if (p := target.runner.estimate(d.files)) is not None)


def _stateful(program: Program, quantized: Any) -> tuple[Program, Any]:
    """With the KV cache that the file keeps, where it does."""
    if (kv := program.kv_buffers) is None:
        return program, quantized
    module, reference = with_kv_buffers(program.module, kv), with_kv_buffers(program.reference, kv)
    inputs, places = program.example_inputs[:COLUMNS], program.in_places[:COLUMNS]
    bounded = {i: d for i, d in program.bounded_dims.items() if i < COLUMNS}
    graphs = replace(program, module=module, reference=reference)
    whole = replace(graphs, state=kv.state, example_inputs=inputs, in_places=places, bounded_dims=bounded)
    return whole, with_kv_buffers(quantized, kv)


def verified(
    casting: Casting, data: CheckData, steps: Steps, on_mismatch: str, ranges: Ranges | None = None
) -> Casting:
    with steps("verify"):
        check = _verify_or_keep(casting, data.batches, steps, on_mismatch)
    return judged(casting, check, data, steps, on_mismatch, ranges)


def judged(
    casting: Casting, check: Check, data: CheckData, steps: Steps, on_mismatch: str, ranges: Ranges | None = None
) -> Casting:
    """The casting with its check; an error where that failed, unless it is kept."""
    check = replace(check, judged_on=data.source)
    casting = checked_methods(_with_data(casting, data, ranges), check)
    done = casting.checked(check, steps.seconds)
    if not check.passed and on_mismatch == "raise":
        raise mismatch_error(done)
    return done


def _with_data(casting: Casting, data: CheckData, ranges: Ranges | None) -> Casting:
    """With the statistics that each method was planned with, and a batch that it was checked on."""
    given = by_method(casting, data.batches)
    known = {MAIN_METHOD: ranges, **ranges.methods} if ranges is not None else {}
    made = {n: _with_evidence(m, given.get(n, []), known.get(n)) for n, m in casting.methods.items()}
    return replace(made.pop(casting.method), others=made)


def _with_evidence(casting: Casting, batches: Sequence[Batch], ranges: Ranges | None) -> Casting:
    evidence = casting.needed_evidence
    batch = flat_inputs(evidence.program, batches[0]) if batches else evidence.program.example_inputs
    return replace(casting, evidence=replace(evidence, ranges=ranges, batch=batch))


def _verify_or_keep(casting: Casting, kept: Sequence[Batch], steps: Steps, on_mismatch: str) -> Check:
    try:
        return check_of(casting, kept, steps)
    except ArtefactError as e:
        if on_mismatch == "raise":
            raise
        return failed_check(casting, e)


def failed_check(casting: Casting, error: IngotError) -> Check:
    """With on_mismatch='keep' an artefact that does not even run is handed over too, marked as failed."""
    return Check(casting.needed_evidence.target.runner.executed_on(), 0, (), passed=False, culprit=str(error))


def check_of(casting: Casting, batches: Iterable[Batch], steps: Steps | None = None) -> Check:
    """Executed and compared; where the artefact leaves its own graph, with the op at which it does."""
    return check_and_finding(casting, batches, steps)[0]


def check_and_finding(
    casting: Casting, batches: Iterable[Batch], steps: Steps | None = None, seconds: Callable[[], float] | None = None
) -> tuple[Check, Finding | None]:
    """Also where the error starts, if the artefact disagrees with its own graph.

    `seconds`: how long the search for it may take, asked when it begins; default: `localize_seconds` of the recipe.
    """
    chosen = own_batches(batches)
    check = run_and_compare(casting, chosen)
    if check.passed or not disagrees_with_graph(check, casting.needed_evidence.recipe):
        return check, None
    name = failing(casting, check)
    with suppress(Exception):  # the check stands, whatever happens while looking for where the error starts
        some, limit = by_method(casting, chosen)[name], None if seconds is None else seconds()
        finding = _localized_method(casting.methods[name], some, steps, limit)
        return replace(check, culprit=finding.culprit or check.culprit), finding
    return check, None


def run_and_compare(casting: Casting, batches: Iterable[Batch]) -> Check:
    """With no more said of a culprit than the graphs tell."""
    with _naming_kernels(casting):
        return check_methods(casting, batches)


def run_first_batch(casting: Casting, batches: Sequence[Batch]) -> None:
    """An ArtefactError where the artefact does not load or run."""
    for name, some in by_method(casting, batches).items():
        evidence = casting.methods[name].needed_evidence
        batch = flat_inputs(evidence.program, some[0]) if some else evidence.program.example_inputs
        with _naming_kernels(casting.methods[name]):
            run_artefact(casting.pte, evidence, [batch])


def localized(
    casting: Casting, batches: Iterable[Batch], steps: Steps | None = None, seconds: float | None = None
) -> Finding:
    """Where the error starts, and whose it is; of several methods the first that has one."""
    given = {n: some for n, some in by_method(casting, own_batches(batches)).items() if some}
    found = [_localized_method(casting.methods[n], some, steps, seconds) for n, some in given.items()]
    if not found:
        raise InputError("no batches to localize with", hint="give at least one input tuple")
    return next((f for f in found if f.kind != "none"), found[0])


def _localized_method(
    casting: Casting, batches: Sequence[Batch], steps: Steps | None, seconds: float | None = None
) -> Finding:
    flat = [flat_inputs(casting.needed_evidence.program, b) for b in batches]
    if not flat:
        flat = [casting.needed_evidence.program.example_inputs]
    with _naming_kernels(casting), (steps or Steps(Silent()))("localize") as tick:
        return diagnose(casting, flat, tick, seconds)


@contextmanager
def _naming_kernels(casting: Casting) -> Iterator[None]:
    try:
        yield
    except ArtefactError as e:
        raise no_kernel_error(e.why or "", casting.host_ops, casting.hosted) or e from e.__cause__


def mismatch_error(casting: Casting) -> MismatchError:
    """Of a casting whose check failed."""
    check = casting.check
    assert check is not None
    bad = [f"{o.name}: {o.problem}" for o in check.outputs if o.problem]
    mismatch = disagrees_with_graph(check, casting.needed_evidence.recipe)
    hint = "read plan.why() of that value, give more calibration data, or inspect it with on_mismatch='keep'"
    reduced = "cut it down with ingot.reduce(…) or `ingot localize … --reduce repro.py`, and report that to the backend"
    return MismatchError(
        f"the {casting.target} artefact is wrong",
        check=check,
        where=check.culprit,
        why="; ".join(bad),
        hint=reduced if mismatch else hint,
    )
