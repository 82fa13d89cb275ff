"""The verbs on one page: capture, record, plan, lower, verify; and cast, which is all five."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, ParamSpec, TypeVar, overload

import torch
from torch.export import ExportedProgram

from ingot.calibrate.held_out import LEAST_BATCHES, CheckData, Split, validation_data
from ingot.calibrate.recorder import record_module
from ingot.calibrate.sizes import record_sizes
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program, capture_program, restore_state
from ingot.capture.inputs import Batch, Inputs, call_of, own_batches
from ingot.capture.sizes import Shapes, capture_sizes
from ingot.config.recipe import Recipe, RecipeLike, recipe_from
from ingot.core.artefact import Check
from ingot.core.progress import Reporter, Silent, Steps
from ingot.core.torch_modes import in_neutral_modes
from ingot.errors import IngotError, InputError, PlanError
from ingot.goal.cast_to_goal import cast_to_goal
from ingot.goal.goal import Goal, goals_from
from ingot.goal.measure import GoalMeasure
from ingot.patches.program_caches import releases_programs
from ingot.patches.version_errors import explains_version_errors
from ingot.plan.plan_data import Plan
from ingot.quantize.qat import Training, prepare_qat
from ingot.result.casting import Casting
from ingot.result.lower_and_verify import check_of, localized, lowered, run_and_compare
from ingot.result.plan_for_methods import plan_program
from ingot.result.plan_for_target import planned_form, quantize_by_plan, recipe_of_plan
from ingot.result.target_cast import TargetCast
from ingot.targets.registry import Availability, available_targets, find_target
from ingot.verify.localize.finding import Finding
from ingot.verify.minify.reducer import Reduction, reduce_model
from ingot.weight_only.cast_weights import cast_weights
from ingot.weight_only.dtypes import inputs_to_float32, model_to_float32
from ingot.weight_only.options import Weights, resolve_for_target, weights_from

Model = torch.nn.Module | ExportedProgram
DynamicShapes = Mapping[str, object] | Sequence[object] | None  # as torch.export takes them
ShapeList = Iterable[Shapes] | None  # one entry for each method
WeightsLike = Weights | Mapping[str, object] | str | None
OnMismatch = Literal["raise", "keep"]

P = ParamSpec("P")
R = TypeVar("R")


def _verb(function: Callable[P, R]) -> Callable[P, R]:
    """Whatever modes of torch the caller is in; an error of other package versions names the versions."""
    return in_neutral_modes(explains_version_errors(releases_programs(function)))


@overload
def cast(
    model: Model,
    example_inputs: Batch | None = None,
    *,
    target: str,
    calibration: Iterable[Batch] | None = None,
    validation: Iterable[Batch] | None = None,
    recipe: RecipeLike = None,
    dynamic_shapes: DynamicShapes = None,
    shapes: ShapeList = None,
    weights: WeightsLike = None,
    goal: Goal | Sequence[Goal] | None = None,
    on_mismatch: OnMismatch = "raise",
    progress: Reporter | None = None,
) -> Casting: ...


@overload
def cast(
    model: Model,
    example_inputs: Batch | None = None,
    *,
    target: list[str] | tuple[str, ...],
    calibration: Iterable[Batch] | None = None,
    validation: Iterable[Batch] | None = None,
    recipe: RecipeLike = None,
    dynamic_shapes: DynamicShapes = None,
    shapes: ShapeList = None,
    weights: WeightsLike = None,
    goal: Goal | Sequence[Goal] | None = None,
    on_mismatch: OnMismatch = "raise",
    progress: Reporter | None = None,
) -> dict[str, Casting]: ...


@_verb
def cast(
    model: Model,
    example_inputs: Batch | None = None,
    *,
    target: str | list[str] | tuple[str, ...],
    calibration: Iterable[Batch] | None = None,
    validation: Iterable[Batch] | None = None,
    recipe: RecipeLike = None,
    dynamic_shapes: DynamicShapes = None,
    shapes: ShapeList = None,
    weights: WeightsLike = None,
    goal: Goal | Sequence[Goal] | None = None,
    on_mismatch: OnMismatch = "raise",
    progress: Reporter | None = None,
) -> Casting | dict[str, Casting]:
    """Quantize and lower `model` for `target`, execute the result and compare it with the float model.

    One target gives a Casting, several give a dict by target from one calibration run; where some fail, the first error
    is raised with the finished ones in `error.castings`. Batches are tensors, tuples of positional arguments, mappings
    of keyword arguments (a DataLoader of dicts), or `ingot.Inputs`. The artefact is verified on all of `validation`.
    Without it, a quarter of 16 or more calibration batches is not recorded and verifies; with fewer, those that were
    recorded do. `check.judged_on` says which. `example_inputs` may be left out for an ExportedProgram. `weights` asks
    for a weight-only or dynamic-activation scheme such as "8da4w". With a `goal` the quickest plan that meets it is
    searched; where none does, GoalError has the nearest. `shapes` is a list of sizes: the file gets a method for each,
    see `casting.methods`.
    """
    names = [target] if isinstance(target, str) else list(target)
    _check_arguments(names, calibration, weights, on_mismatch)
    goals = _goals(goal, weights)
    settings, steps = recipe_from(recipe), Steps(progress or Silent())
    for found in (find_target(name, settings.options, settings.extra_backends) for name in names):
        if weights is not None:
            resolve_for_target(weights_from(weights), found)
    model_facts = (model, example_inputs, dynamic_shapes, shapes)
    data = (() if calibration is None else calibration, validation)
    if weights is None:
        made = _cast_static(model_facts, names, data, settings, on_mismatch, steps, goals)
    else:
        made = _cast_weight_only(model_facts, names, data, settings, weights, on_mismatch, steps)
    return made[names[0]] if isinstance(target, str) else made


ModelFacts = tuple[Model, Batch | None, DynamicShapes, ShapeList]
Data = tuple[Iterable[Batch], Iterable[Batch] | None]  # calibration, validation


def _cast_static(
    model_facts: ModelFacts, names: list[str], data: Data, recipe: Recipe, on_mismatch: OnMismatch, steps: Steps,
    goals: tuple[Goal, ...] = (),
) -> dict[str, Casting]:  # fmt: skip
    """One calibration run for all targets."""
    model, example_inputs, dynamic_shapes, shapes = model_facts
    with steps("capture"):
        program = capture(model, example_inputs, dynamic_shapes=dynamic_shapes, shapes=shapes)
    if goals and program.others:
        hint = "cast with the goal at one size, and with shapes by the recipe that it found"
        raise InputError("a goal is measured at one size", why="shapes= has several", hint=hint)
    calibration, split, validation = _split(program, data, recipe)
    with steps("record") as tick:
        ranges = record(program, calibration, on_batch=lambda n: tick(n, None))
    checked = validation or split.data
    program = replace(program, notes=(*program.notes, *_unsplit_note(program, split, validation)))
    measure = GoalMeasure.of(program, goals) if goals else None

    def make(name: str) -> Casting:
        work = TargetCast(name, program, ranges, recipe, checked, steps.fork(), on_mismatch)
        return work.casting() if measure is None else cast_to_goal(work, measure)

    return _for_each(names, make)


def _goals(goal: Goal | Sequence[Goal] | None, weights: WeightsLike) -> tuple[Goal, ...]:
    goals = goals_from(goal)
    if goals and weights is not None:
        what, hint = "a goal searches over activations and weights", "leave weights out, or the goal"
        raise InputError(what, why="weights= asks for one scheme for the whole model", hint=hint)
    return goals


def _split(program: Program, data: Data, recipe: Recipe) -> tuple[Iterator[Batch], Split, CheckData | None]:
    """Validation data is read first, so that batches that do not fit are refused before the work."""
    calibration, given = data
    validation = None if given is None else validation_data(given)
    for batch in validation.batches if validation else ():
        program.flatten(batch)
    split = Split(recipe.verify_batches, hold=validation is None and not program.state)
    return split.recorded(calibration), split, validation


def _unsplit_note(program: Program, split: Split, validation: CheckData | None) -> list[str]:
    if validation is not None or not program.state or split.count < LEAST_BATCHES:
        return []
    return ["the program has state, so its batches are one sequence: none was held out, it is verified on the first"]


def _for_each(names: list[str], make: Callable[[str], Casting]) -> dict[str, Casting]:
    """A casting for each target. One that fails does not lose the others: the error carries them."""
    made: dict[str, Casting] = {}
    failed: dict[str, IngotError] = {}
    for name in names:
        try:
            made[name] = make(name)
        except IngotError as e:
            failed[name] = e
    if failed:
        error = next(iter(failed.values()))
        error.castings, error.failures = made, failed
        raise error
    return made


def _cast_weight_only(
    model_facts: ModelFacts, names: list[str], data: Data, recipe: Recipe, weights: WeightsLike,
    on_mismatch: OnMismatch, steps: Steps,
) -> dict[str, Casting]:  # fmt: skip
    """In float32, whatever dtype the checkpoint has."""
    model, example_inputs, dynamic_shapes, shapes = model_facts
    if shapes is not None:
        why = "weights= rounds the weights of one program"
        raise InputError("shapes with weights= is not offered", why=why, hint="leave one of them out")
    with steps("capture"):
        computed, note = model_to_float32(model)
        example = None if example_inputs is None else _in_float32(example_inputs)
        program = capture(computed, example, dynamic_shapes=dynamic_shapes)
    program = replace(program, notes=(*program.notes, *([note] if note else ())))
    calibration, given = ([_in_float32(b) for b in own_batches(some)] if some is not None else None for some in data)
    recorded, split, validation = _split(program, (calibration or [], given), recipe)
    batches = [program.flatten(b) for b in recorded]
    program = replace(program, notes=(*program.notes, *_unsplit_note(program, split, validation)))
    checked = validation or (split.data if split.count else None)
    facts = (weights, batches, recipe)
    return _for_each(names, lambda n: cast_weights(program, n, *facts, steps.fork(), on_mismatch, checked=checked))


def _in_float32(batch: Batch) -> Inputs:
    args, kwargs = inputs_to_float32(call_of(batch))
    return Inputs(*args, **kwargs)


@_verb
def capture(
    model: Model,
    example_inputs: Batch | None = None,
    *,
    dynamic_shapes: DynamicShapes = None,
    shapes: ShapeList = None,
) -> Program:
    """Export the model and bring it into canonical form; a model that cannot be cast is refused with its line.

    `shapes`: a list of sizes, for targets that compile for fixed ones. Each becomes a method of the file.
    """
    if shapes is None:
        return capture_program(model, example_inputs, dynamic_shapes=dynamic_shapes)
    if dynamic_shapes is not None:
        why = "dynamic_shapes makes one method for all sizes, shapes a method for each"
        raise InputError("dynamic_shapes and shapes contradict each other", why=why, hint="leave one of them out")
    return capture_sizes(model, example_inputs, shapes)


@_verb
def record(
    program: Program, batches: Iterable[Batch], *, on_batch: Callable[[int], None] | None = None, shard: int = 0
) -> Ranges:
    """Calibrate: one float run over the batches, statistics per value, for every target and precision.

    A program with state (a cache, a hidden state) sees the batches as a sequence, from the initial state on. Data in
    several parts: record each with its number as `shard`, from 0, and join them with `Ranges.merge` in that order.
    """
    if program.others:
        return record_sizes(program, batches, on_batch, shard)
    restore_state(program.module, program.state)
    flat = (program.flatten(b) for b in batches)
    try:
        return record_module(program.module, flat, fingerprint=program.fingerprint, on_batch=on_batch, shard=shard)
    finally:
        restore_state(program.module, program.state)


@_verb
def plan(program: Program, ranges: Ranges, target: str, *, recipe: RecipeLike = None) -> Plan:
    """Solve for the quantization of every value on `target`, with reasons."""
    if ranges.fingerprint != program.fingerprint:
        raise PlanError("these ranges were recorded on another program", hint="record this program first")
    return plan_program(program, ranges, target, recipe_from(recipe))


@_verb
def train(program: Program, plan: Plan, *, recipe: RecipeLike = None) -> Training:
    """The plan as fake quantizers: a module to train, then `lower(*training.finish())`."""
    if program.others:
        why, hint = "shapes= has several", "capture the model at one size, and train that"
        raise InputError("a program is trained at one size", why=why, hint=hint)
    settings = recipe_of_plan(plan, recipe)
    target = find_target(plan.target, settings.options, settings.extra_backends)
    return prepare_qat(planned_form(program, plan, target, settings), plan, target)


@_verb
def lower(program: Program, plan: Plan, *, recipe: RecipeLike = None) -> Casting:
    """Replay the plan and lower it for its target. Not yet executed: `verify` does that."""
    steps = Steps(Silent())
    return lowered(quantize_by_plan(program, plan, recipe_of_plan(plan, recipe), steps), steps)


@_verb
def verify(casting: Casting, batches: Iterable[Batch]) -> Check:
    """Execute the artefact on all `batches`; compare it with the float model and with its own quantized graph."""
    return check_of(casting, batches)


@_verb
def localize(casting: Casting, batches: Iterable[Batch]) -> Finding:
    """Where the error starts, value by value, and its cause: quantization, the backend, or the file."""
    return localized(casting, batches)


@_verb
def reduce(
    model: Model,
    example_inputs: Batch,
    path: str | os.PathLike[str],
    *,
    target: str,
    calibration: Iterable[Batch],
    recipe: RecipeLike = None,
    budget: float = 300,
    setup: str = "",
    on_trial: Callable[[int], None] | None = None,
) -> Reduction:
    """Minify a model whose cast fails to the smallest that fails alike; write it as a file that runs by itself.

    `setup` is put at the top of the file: code that registers your own ops or backends.
    """
    return reduce_model(
        _attempt, model, example_inputs, path, target=target, calibration=calibration, recipe=recipe, budget=budget,
        setup=setup, on_trial=on_trial,
    )  # fmt: skip


def _attempt(model: Model, batches: Sequence[Batch], target: str, recipe: Recipe) -> Check:
    """Like `cast`, without localizing an error."""
    program = capture(model, batches[0])
    made = plan(program, record(program, batches), target, recipe=recipe)
    return run_and_compare(lower(program, made, recipe=recipe), batches)


@_verb
def targets() -> tuple[Availability, ...]:
    """Every target: what is installed, what is missing, the command that installs it, its options."""
    return available_targets()


def _check_arguments(names: list[str], calibration: object, weights: WeightsLike, on_mismatch: str) -> None:
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
