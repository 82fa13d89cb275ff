"""Commands that write programs, plans and statistics: cast, record, plan, lower."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ingot import api
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.cli.files import check_file, check_folder, read_plan
from ingot.cli.goals import asked_goal
from ingot.cli.inputs import asked_recipe, given, given_shards, refuse_ignored_options
from ingot.cli.llm_commands import cast_hf
from ingot.cli.output import OK, WRONG, Answer
from ingot.config.recipe import recipe_from
from ingot.core.atomic_file import atomic_write, write_folders
from ingot.core.progress import Progress
from ingot.data.named_inputs import Given
from ingot.errors import GoalError, IngotError, InputError, MismatchError
from ingot.fleet.shards import record_shards
from ingot.plan.plan_data import Plan
from ingot.result.casting import Casting
from ingot.result.report.facts import facts_of, to_json
from ingot.result.report.html import page
from ingot.result.report.text import json_ready, summary, summary_facts
from ingot.result.saved import saved_files, saved_recipe

OF_HF = {"context": "--context", "kv_cache": "--kv-cache", "text": "--text"}


def cast(options: argparse.Namespace) -> Answer:
    if options.hf is not None:
        return cast_hf(options, casting_files)
    if options.model is None:
        raise InputError("no model was named", hint="ingot cast net.py:build …, or --hf DIR for a language model")
    refuse_ignored_options(options, "it is for --hf, a language model", OF_HF)
    check_folder(options.output)
    if options.scenario and "vgf" not in options.target:
        raise InputError("--scenario is for vgf", why="a scenario is made of .vgf files", hint="--target vgf")
    try:
        castings = _cast(options)
    except IngotError as e:  # for one of several targets: the others are not lost
        if done := {**e.castings, **_nearest(e)}:
            _write(done, options)
        raise
    return _write(castings, options)


def _nearest(error: IngotError) -> dict[str, Casting]:
    """Castings that miss their goal are written too: the exit code says it."""
    each = error.failures or {"": error}
    return {e.casting.target: e.casting for e in each.values() if isinstance(e, GoalError)}


def _write(castings: Mapping[str, Casting], options: argparse.Namespace) -> Answer:
    answer = _written(castings, options)
    if options.scenario:
        _write_scenarios(castings, options)
    return answer


def _cast(options: argparse.Namespace) -> dict[str, Casting]:
    recipe, data = asked_recipe(options), given(options)
    return api.cast(
        data.loaded.model,
        data.example,
        target=list(dict.fromkeys(options.target)),
        calibration=data.batches if options.weights is not None else data.calibration,
        validation=data.validation,
        recipe=recipe,
        **data.loaded.sizes,
        weights=options.weights,
        goal=asked_goal(options, data),
        on_mismatch=options.on_mismatch,
        progress=Progress(quiet=options.quiet),
    )


def _write_scenarios(castings: Mapping[str, Casting], options: argparse.Namespace) -> None:
    for folder, casting in _folders(castings, options).items():
        if casting.needed_evidence.target.runner.writes_scenarios:
            casting.scenario(folder / "scenario")


def _folders(castings: Mapping[str, Casting], options: argparse.Namespace) -> dict[Path, Casting]:
    """One target fills the folder, several fill one folder each below it."""
    several = isinstance(options.target, list) and len(set(options.target)) > 1
    return {options.output / t if several else options.output: c for t, c in castings.items()}


def _written(castings: Mapping[str, Casting], options: argparse.Namespace) -> Answer:
    each = _folders(castings, options)
    places = {place: c for folder, casting in each.items() for place, c in casting.folders(folder).items()}
    write_folders({place: casting_files(c, options) for place, c in places.items()})
    facts = {c.target: {**summary_facts(c), "folder": str(folder)} for folder, c in each.items()}
    code = OK if all(c.check is not None and c.check.passed for c in each.values()) else WRONG
    text = "\n\n".join(f"{summary(c, options.verbose)}\nwritten to {folder}" for folder, c in each.items())
    return code, _only(facts), "" if options.quiet else text


def casting_files(casting: Casting, options: argparse.Namespace) -> dict[str, bytes]:
    facts = facts_of(casting)
    files = saved_files(casting, evidence=not options.slim) | {"report.json": to_json(facts).encode()}
    return {**files, "report.html": page(facts).encode()} if options.report else files


def record(options: argparse.Namespace) -> Answer:
    check_file(options.output)
    if options.data is None:
        refuse_ignored_options(options, "it is for shards", {"ray": "--ray", "processes": "--processes"})
    elif options.calibrate is not None:
        raise InputError("--calibrate would be ignored", why="--data names the data", hint="leave it out")
    data, progress = given(options) if options.data is None else given_shards(options), Progress(quiet=options.quiet)
    with progress.step("capture"):
        program = api.capture(data.loaded.model, data.example, **data.loaded.sizes)
    with progress.step("record") as tick:
        ranges = _record(program, data, options, lambda n: tick(n, None))
    ranges.save(options.output)
    facts = {"file": str(options.output), "batches": ranges.batches, "values": len(ranges.values)}
    text = f"{facts['values']} values over {facts['batches']} batches, written to {options.output}"
    return OK, {**facts, "notes": list(ranges.notes)}, "" if options.quiet else "\n".join([text, *ranges.notes])


def _record(program: Program, data: Given, options: argparse.Namespace, on_one: Callable[[int], None]) -> Ranges:
    if options.data is None:
        return api.record(program, data.calibration, on_batch=on_one)
    how = {"ray": options.ray, "processes": options.processes or 1, "mean": options.mean, "std": options.std}
    return record_shards(program, options.data, model=options.model, on_shard=on_one, **how)


def plan(options: argparse.Namespace) -> Answer:
    if options.output:
        check_file(options.output)
    recipe, data, progress = recipe_from(options.recipe), given(options), Progress(quiet=options.quiet)
    with progress.step("capture"):
        program = api.capture(data.loaded.model, data.example, **data.loaded.sizes)
    with progress.step("record") as tick:
        ranges = api.record(program, data.calibration, on_batch=lambda n: tick(n, None))
    with progress.step("plan"):
        plans = {t: api.plan(program, ranges, t, recipe=recipe) for t in dict.fromkeys(options.target)}
    return _plan_answer(plans, options.output, options.quiet)


def _plan_answer(plans: dict[str, Plan], output: Path | None, quiet: bool) -> Answer:
    shown = _only({target: json_ready(json.loads(plan.to_json())) for target, plan in plans.items()})
    text = json.dumps(shown, indent=2, allow_nan=False)
    if output is None:
        return OK, shown, text
    with atomic_write(output) as f:
        f.write(text.encode() + b"\n")
    return OK, {"file": str(output)}, "" if quiet else f"written to {output}"


def lower(options: argparse.Namespace) -> Answer:
    """The plan as it is in the file; what it was planned from is not needed."""
    check_folder(options.output)
    made, data, progress = read_plan(options.plan, options.target), given(options), Progress(quiet=options.quiet)
    recipe = saved_recipe(options.plan) if options.recipe is None else recipe_from(options.recipe)
    with progress.step("capture"):
        program = api.capture(data.loaded.model, data.example, **data.loaded.sizes)
    with progress.step("lower"):
        casting = api.lower(program, made, recipe=recipe)
    with progress.step("verify"):
        check = api.verify(casting, data.calibration if data.validation is None else data.validation)
    source = "calibration" if data.validation is None else "validation"
    casting = casting.checked(replace(check, judged_on=source), {})
    if not check.passed and options.on_mismatch == "raise":
        why = "; ".join(f"{o.name}: {o.problem}" for o in check.outputs if o.problem)
        hint = "read `ingot why`, or keep it with --on-mismatch keep"
        what = f"the {casting.target} artefact is wrong"
        raise MismatchError(what, check=check, where=check.culprit, why=why, hint=hint)
    return _written({casting.target: casting}, options)


def _only(facts: dict[str, Any]) -> dict[str, Any]:
    """For one target, its facts alone."""
    return next(iter(facts.values())) if len(facts) == 1 else facts
