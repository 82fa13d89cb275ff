"""The whole story on one page: capture, record, plan, lower, verify; and cast, which is all five."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from ingot.capture import Program, restore_state
from ingot.capture import capture as _capture
from ingot.casting import Casting, Check
from ingot.errors import ArtefactError, InputError, MismatchError, PlanError
from ingot.layout import images_of, laid_out
from ingot.legalize import legalized
from ingot.localize.finding import Finding
from ingot.localize.verdict import find as find_error
from ingot.lower import lower_graph
from ingot.plan.model import Plan
from ingot.plan.solve import solve, solve_each, unquantized
from ingot.plan.validate import validate, with_biases
from ingot.progress import Silent, Steps
from ingot.qat import Training, prepare
from ingot.quantize import quantize
from ingot.ranges import Ranges
from ingot.recipe import Recipe, recipe_from
from ingot.recorder import measured_again, record_module
from ingot.rehearse import METHODS, can_rehearse, rehearsed
from ingot.targets import Availability, available, find
from ingot.targets.base import Target
from ingot.verify import Evidence, verify_artefact
from ingot.weights.choice import refuse_storage, refuse_unseen, weights_from
from ingot.weights.moments import Moments
from ingot.weights.road import planned, quantized_weights

Batch = tuple[torch.Tensor, ...]


def cast(
    model: Any,
    example_inputs: Any,
    *,
    target: str | list[str] | tuple[str, ...],
    calibration: Iterable[Any] | None = None,
    recipe: Any = None,
    dynamic_shapes: Any = None,
    weights: Any = None,
    on_mismatch: str = "raise",
    progress: Any = None,
) -> Any:
    """Cast `model` for `target`: a Casting that was executed and compared, or a dict of them for several targets."""
    names = [target] if isinstance(target, str) else list(target)
    _check_arguments(names, calibration, weights, on_mismatch)
    settings, steps = recipe_from(recipe), Steps(progress or Silent())
    for name in names:
        found = find(name, settings.options, settings.beside)
        if weights is not None:
            refuse_unseen(weights_from(weights), found)
    with steps("capture"):
        program = capture(model, example_inputs, dynamic_shapes=dynamic_shapes)
    kept: list[Batch] = []
    if weights is not None:
        batches = [program.flatten(b) for b in calibration or ()]
        made = {n: cast_weights(program, n, weights, batches, settings, steps.fork(), on_mismatch) for n in names}
        return made[names[0]] if isinstance(target, str) else made
    with steps("record") as tick:
        ranges = record(program, _keeping(calibration, kept, settings.verify_batches), on_batch=lambda n: tick(n, None))
    made = {name: _cast_for(name, program, ranges, settings, kept, steps.fork(), on_mismatch) for name in names}
    return made[names[0]] if isinstance(target, str) else made


def cast_weights(
    program: Program,
    target: str,
    weights: Any,
    batches: list[Batch],
    recipe: Any = None,
    steps: Steps | None = None,
    on_mismatch: str = "raise",
    seen: Moments | None = None,
) -> Casting:
    """Weights as integers, activations by token or float: nothing is recorded, ranges are found when it runs."""
    settings, asked, steps = recipe_from(recipe), weights_from(weights), steps or Steps(Silent())
    backend = find(target, settings.options, settings.beside)
    refuse_unseen(asked, backend)
    refuse_storage(settings)
    form = legalized(program, backend, settings)
    with steps("quantize"):
        quantized, layers = quantized_weights(form.program.module, asked, batches, seen)
    facts = (form.program.module, backend, form.program.fingerprint, form.rewrites)
    made = planned(unquantized(*facts, "only weights are quantized"), layers, asked)
    made = replace(made, settings={**_to_remember(settings), "weights": asked.scheme})
    casting = replace(_lowered(program, form.program, quantized, made, backend, settings, steps), layers=layers)
    return _verified(casting, batches or [program.example_inputs], steps, on_mismatch)


def _cast_for(
    target: str, program: Program, ranges: Ranges, recipe: Recipe, kept: list[Batch], steps: Steps, on_mismatch: str
) -> Casting:
    with steps("plan"):
        made = plan(program, ranges, target, recipe=recipe)
    return _verified(_lower(program, made, recipe, steps), kept, steps, on_mismatch)


def _verified(casting: Casting, kept: list[Batch], steps: Steps, on_mismatch: str) -> Casting:
    with steps("verify"):
        check = _verify_or_keep(casting, kept, on_mismatch)
    done = casting.checked(check, steps.seconds)
    if not check.passed and on_mismatch == "raise":
        raise _mismatch(done)
    return done


def _verify_or_keep(casting: Casting, kept: list[Batch], on_mismatch: str) -> Check:
    """With on_mismatch='keep' an artefact that does not even run is handed over too, marked as failed."""
    try:
        return verify(casting, kept)
    except ArtefactError as e:
        if on_mismatch == "raise":
            raise
        return Check(casting.evidence.target.executed_on(), 0, (), passed=False, culprit=str(e))


def capture(model: Any, example_inputs: Any, *, dynamic_shapes: Any = None) -> Program:
    """Export the model and bring it into normal form; refuses what cannot be cast, in a sentence."""
    return _capture(model, example_inputs, dynamic_shapes=dynamic_shapes)


def record(program: Program, batches: Iterable[Any], *, on_batch: Callable[[int], None] | None = None) -> Ranges:
    """One float run over the batches: statistics per value, for every target and precision.

    A program with state (a cache, a hidden state) sees the batches as a sequence, from the initial state on.
    """
    restore_state(program.module, program.state)
    flat = (program.flatten(b) for b in batches)
    try:
        return record_module(program.module, flat, fingerprint=program.fingerprint, on_batch=on_batch)
    finally:
        restore_state(program.module, program.state)


def plan(program: Program, ranges: Ranges, target: str, *, recipe: Any = None) -> Plan:
    """What every value is stored as on `target`, and why."""
    if ranges.fingerprint != program.fingerprint:
        raise PlanError("these ranges were recorded on another program", hint="record this program first")
    settings = recipe_from(recipe)
    backend = find(target, settings.options, settings.beside)
    if backend.fixed_shapes and program.dynamic_shapes is not None:
        why = f"{backend.name} compiles for fixed shapes, and these were declared dynamic"
        hint = "leave dynamic_shapes out: the program is then made for the shapes of the example"
        raise PlanError("dynamic shapes cannot be cast for this target", why=why, hint=hint)
    form = legalized(program, backend, settings)
    module, state = form.program.module, form.program.state
    outside: Any = {
        "channels_last": images_of(settings.channels_last, module),
        "integer_io": settings.integer_io,
        "settings": _to_remember(settings),
    }
    if not settings.quantize:
        return replace(unquantized(module, backend, form.program.fingerprint, form.rewrites), **outside)
    if not backend.float_inside:
        ranges = measured_again(module, ranges, lambda: restore_state(module, state))
    facts = (module, ranges, backend, form.program.fingerprint, form.rewrites, settings)
    if state or not can_rehearse(module, ranges.kept):
        return replace(solve(*facts), **outside)
    methods = METHODS if settings.range == "auto" else (settings.range,)
    plans = dict(zip(methods, solve_each(*facts, methods), strict=True))
    with torch.no_grad():
        best = rehearsed(plans, module, ranges.kept, correct=settings.correct_biases)
    return replace(best, **outside)


def _to_remember(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says that its plan cannot be lowered without, as plain data."""
    lists = {"beside": list(recipe.beside), "without_rules": list(recipe.without_rules)}
    rest = {"options": dict(recipe.options), "lend_inputs": recipe.lend_inputs}
    return {k: v for k, v in {**rest, **lists}.items() if v}


def _for_plan(plan: Plan, recipe: Any) -> Recipe:
    """The recipe that is given, or what the plan remembers of its own."""
    remembered = {k: v for k, v in plan.settings.items() if k != "weights"}
    return recipe_from(remembered if recipe is None else recipe)


def train(program: Program, plan: Plan, *, recipe: Any = None) -> Training:
    """The plan as fake quantizers to train with: `loss(training(x)).backward()`, then lower(*training.finish())."""
    settings = _for_plan(plan, recipe)
    target = find(plan.target, settings.options, settings.beside)
    form = legalized(program, target, settings).program
    _must_match(plan, form)
    return prepare(form, plan, target)


def _must_match(plan: Plan, program: Program) -> None:
    if "weights" in plan.settings:
        why = f"its weights are {plan.settings['weights']}, and a plan does not hold what they are rounded with"
        raise PlanError("this plan cannot be carried out again", why=why, hint="cast the model again with weights=…")
    if plan.fingerprint != program.fingerprint:
        raise PlanError("this plan was made for another program", hint="plan this program first")


def lower(program: Program, plan: Plan, *, recipe: Any = None) -> Casting:
    """Replay the plan, lower it for its target and say what became of every op. Not yet executed."""
    return _lower(program, plan, _for_plan(plan, recipe), Steps(Silent()))


def _lower(program: Program, plan: Plan, recipe: Recipe, steps: Steps) -> Casting:
    target = find(plan.target, recipe.options, recipe.beside)
    form = legalized(program, target, recipe).program
    _must_match(plan, form)
    validate(plan, form.module, target)
    plan, form = with_biases(plan, form.module), laid_out(form, plan.channels_last)
    with steps("quantize"):
        quantized = quantize(form.module, plan, float_bias=target.float_bias)
    return _lowered(program, form, quantized, plan, target, recipe, steps)


def _lowered(
    program: Program, form: Program, quantized: Any, plan: Plan, target: Target, recipe: Recipe, steps: Steps
) -> Casting:
    with steps("lower"):
        done = lower_graph(form, quantized, plan, target)
    performance = tuple(p for d in done.delegates if (p := target.performance(d.files)) is not None)
    evidence = Evidence(form, quantized, target, recipe, done.io, done.delegates)
    return Casting(
        target.name, done.pte, done.delegates, done.host_ops, done.io, plan, None, dict(steps.seconds),
        (*program.notes, *plan.notes), performance, evidence=evidence,
    )  # fmt: skip


def verify(casting: Casting, batches: Iterable[Any]) -> Check:
    """Execute the artefact on `batches` and compare it with the float model and with its own quantized graph."""
    chosen = list(islice(batches, casting.evidence.recipe.verify_batches))
    check = run_and_compare(casting, chosen)
    if check.passed or not left_its_graph(check, casting.evidence.recipe):
        return check
    with suppress(Exception):  # the check stands, whatever happens while looking for where the error starts
        check = replace(check, culprit=localize(casting, chosen).culprit or check.culprit)
    return check


def run_and_compare(casting: Casting, batches: Iterable[Any]) -> Check:
    """The check of verify(), with no more said of a culprit than the graphs tell."""
    evidence = casting.evidence
    with _naming_kernels(casting):
        return verify_artefact(casting.pte, evidence, (evidence.program.flatten(b) for b in batches))


def left_its_graph(check: Check, recipe: Recipe) -> bool:
    """It failed, and not by rounding alone."""
    return any(o.problem is not None and o.faithful_db < recipe.min_faithful_db for o in check.outputs)


def localize(casting: Casting, batches: Iterable[Any]) -> Finding:
    """Where the error starts, value by value, and whose it is: rounding's, the backend's or the file's."""
    flat = [casting.evidence.program.flatten(b) for b in batches]
    with _naming_kernels(casting):
        return find_error(casting, flat)


@contextmanager
def _naming_kernels(casting: Casting) -> Iterator[None]:
    try:
        yield
    except ArtefactError as e:
        raise _missing_kernel(e, casting) or e from e.__cause__


def _missing_kernel(error: ArtefactError, casting: Casting) -> ArtefactError | None:
    """The runtime names the op it has no kernel for; the user's line of it is known here."""
    said = re.search(r"Missing operator: \[\d+\] \w+::(\w+)", error.why or "")
    op = next((o for o in casting.host_ops if said and o.op.split(".")[0] == said[1]), None)
    if op is None:
        return None
    why = f"{op.reason}, and the runtime here has no host kernel for it either"
    hint = "write it with other ops, or give the runtime a kernel for it and verify there"
    return ArtefactError(f"nothing can run {op.op}", where=f"{op.name} ({op.source})", why=why, hint=hint)


def targets() -> tuple[Availability, ...]:
    """What is known, what is installed, what is missing and how to install it."""
    return available()


def _check_arguments(names: list[str], calibration: Any, weights: Any, on_mismatch: str) -> None:
    if not names:
        raise InputError("no target was named", hint="target='xnnpack'")
    if on_mismatch not in ("raise", "keep"):
        raise InputError(f"on_mismatch must be 'raise' or 'keep', not {on_mismatch!r}")
    if calibration is None and weights is None:
        raise InputError(
            "no calibration data",
            why="ranges of activations are measured, not guessed",
            hint="calibration=[(x,), …] with a few dozen real inputs",
        )


def _keeping(batches: Any, kept: list[Batch], most: int) -> Iterator[Any]:
    """Pass the batches on and keep the first few to verify with."""
    for batch in batches:
        if len(kept) < most:
            kept.append(batch)
        yield batch


def _mismatch(casting: Casting) -> MismatchError:
    check = casting.check
    assert check is not None
    bad = [f"{o.name}: {o.problem}" for o in check.outputs if o.problem]
    strayed = left_its_graph(check, casting.evidence.recipe)
    hint = "read plan.why() of that value, give more calibration data, or inspect it with on_mismatch='keep'"
    reduced = "cut it down with ingot.reduce(…) or `ingot localize … --reduce repro.py`, and report that to the backend"
    return MismatchError(
        f"the {casting.target} artefact is wrong",
        check=check,
        where=check.culprit,
        why="; ".join(bad),
        hint=reduced if strayed else hint,
    )
