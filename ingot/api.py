"""The whole story on one page: capture, record, plan, lower, verify; and cast, which is all five."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ingot.calibrate.recorder import measured_again, record_module
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program, restore_state
from ingot.capture.export import capture as _capture
from ingot.config.recipe import Recipe, recipe_from
from ingot.core.artefact import Check
from ingot.core.progress import Silent, Steps
from ingot.errors import InputError, PlanError
from ingot.plan.model import Plan
from ingot.plan.search import CANDIDATE_ESTIMATORS, best_plan
from ingot.plan.simulated_quantization import can_simulate
from ingot.plan.solve import solve, solve_each, unquantized
from ingot.plan.validate import validate, with_bias_qparams
from ingot.quantize.memory_format import images_of, laid_out
from ingot.quantize.pt2e import quantize
from ingot.quantize.qat import Training, prepare
from ingot.result.assemble import check_of, localized, lowered, verified
from ingot.result.casting import Casting
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import Availability, available_targets, find_target
from ingot.verify.localize.finding import Finding
from ingot.weight_only.cast import cast_weights
from ingot.weight_only.dtypes import in_float32, widened
from ingot.weight_only.options import settled, weights_from

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
        found = find_target(name, settings.options, settings.beside)
        if weights is not None:
            settled(weights_from(weights), found)
    kept: list[Batch] = []
    if weights is not None:
        program = _in_float32(model, example_inputs, dynamic_shapes, steps)
        batches = [program.flatten(widened(b)) for b in calibration or ()]
        made = {n: cast_weights(program, n, weights, batches, settings, steps.fork(), on_mismatch) for n in names}
        return made[names[0]] if isinstance(target, str) else made
    with steps("capture"):
        program = capture(model, example_inputs, dynamic_shapes=dynamic_shapes)
    with steps("record") as tick:
        ranges = record(program, _keeping(calibration, kept, settings.verify_batches), on_batch=lambda n: tick(n, None))
    made = {name: _cast_for(name, program, ranges, settings, kept, steps.fork(), on_mismatch) for name in names}
    return made[names[0]] if isinstance(target, str) else made


def _in_float32(model: Any, example_inputs: Any, dynamic_shapes: Any, steps: Steps) -> Program:
    with steps("capture"):
        computed, note = in_float32(model)
        program = capture(computed, widened(example_inputs), dynamic_shapes=dynamic_shapes)
    return replace(program, notes=(*program.notes, *([note] if note else ())))


def _cast_for(
    target: str, program: Program, ranges: Ranges, recipe: Recipe, kept: list[Batch], steps: Steps, on_mismatch: str
) -> Casting:
    with steps("plan"):
        made = plan(program, ranges, target, recipe=recipe)
    return verified(_lower(program, made, recipe, steps), kept, steps, on_mismatch, ranges)


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
    backend = find_target(target, settings.options, settings.beside)
    if backend.lowering.static_shapes and program.dynamic_shapes is not None:
        why = f"{backend.name} compiles for fixed shapes, and these were declared dynamic"
        hint = "leave dynamic_shapes out: the program is then made for the shapes of the example"
        raise PlanError("dynamic shapes cannot be cast for this target", why=why, hint=hint)
    if settings.quantize and not backend.numerics.formats:
        hint = "weights='4w' (or another scheme that it offers), or quantize = false in a recipe"
        raise PlanError(
            f"{backend.name} is not offered with integer activations", why="none were seen to be right here", hint=hint
        )
    form = rewrite_for(program, backend, settings)
    module, state = form.program.module, form.program.state
    outside: Any = {
        "channels_last": images_of(settings.channels_last, module),
        "integer_io": settings.integer_io,
        "settings": settings.remembered,
    }
    if not settings.quantize:
        return replace(unquantized(module, backend, form.program.fingerprint, form.rewrites), **outside)
    if not backend.numerics.runs_float:
        ranges = measured_again(module, ranges, lambda: restore_state(module, state))
    facts = (module, ranges, backend, form.program.fingerprint, form.rewrites, settings)
    if state or not can_simulate(module, ranges.kept):
        return replace(solve(*facts), **outside)
    estimators = CANDIDATE_ESTIMATORS if settings.range == "auto" else (settings.range,)
    plans = dict(zip(estimators, solve_each(*facts, estimators), strict=True))
    with torch.no_grad():
        best = best_plan(plans, module, ranges.kept, correct_biases=settings.correct_biases)
    return replace(best, **outside)


def _for_plan(plan: Plan, recipe: Any) -> Recipe:
    """The recipe that is given, or what the plan remembers of its own."""
    remembered = {k: v for k, v in plan.settings.items() if k != "weights"}
    return recipe_from(remembered if recipe is None else recipe)


def train(program: Program, plan: Plan, *, recipe: Any = None) -> Training:
    """The plan as fake quantizers to train with: `loss(training(x)).backward()`, then lower(*training.finish())."""
    settings = _for_plan(plan, recipe)
    target = find_target(plan.target, settings.options, settings.beside)
    form = rewrite_for(program, target, settings).program
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
    target = find_target(plan.target, recipe.options, recipe.beside)
    form = rewrite_for(program, target, recipe).program
    _must_match(plan, form)
    validate(plan, form.module, target)
    plan, form = with_bias_qparams(plan, form.module), laid_out(form, plan.channels_last)
    with steps("quantize"):
        quantized = quantize(form.module, plan, float_bias=target.numerics.bias == "float")
    return lowered(program, form, quantized, plan, target, recipe, steps)


def verify(casting: Casting, batches: Iterable[Any]) -> Check:
    """Execute the artefact on `batches` and compare it with the float model and with its own quantized graph."""
    return check_of(casting, batches)


def localize(casting: Casting, batches: Iterable[Any]) -> Finding:
    """Where the error starts, value by value, and whose it is: rounding's, the backend's or the file's."""
    return localized(casting, batches)


def targets() -> tuple[Availability, ...]:
    """What is known, what is installed, what is missing and how to install it."""
    return available_targets()


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
