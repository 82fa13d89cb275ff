"""Commands that execute an artefact: verify, localize, run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ingot import api
from ingot.capture.inputs import Batch, own_batches
from ingot.cli.files import check_file, read_bytes, read_plan
from ingot.cli.inputs import asked_recipe, given, refuse_ignored_options
from ingot.cli.output import OK, WRONG, Answer, exit_code
from ingot.cli.tables import table
from ingot.core.progress import Progress
from ingot.data import load_calibration
from ingot.data.named_inputs import Given
from ingot.errors import ArtefactError, InputError, LowerError
from ingot.result.casting import Casting
from ingot.result.report.text import decibel, headline, json_ready, output_lines, summary_facts
from ingot.result.saved import saved_recipe
from ingot.result.scenario import run_scenario_folder
from ingot.verify.localize.finding import Finding, ValueCheck
from ingot.verify.minify.reducer import Reduction

SAME_WEIGHTS = "try: is it the model that was cast? build() must give the same weights each time: seed it, or load them"
BUDGET = 300.0


def verify(options: argparse.Namespace) -> Answer:
    """From the folder alone where it holds its evidence; else the model is captured and its plan replayed."""
    folder = options.artefact if options.artefact.is_dir() else options.artefact.parent
    pte = read_bytes(folder / "model.pte" if options.artefact.is_dir() else options.artefact)
    progress = Progress(quiet=options.quiet)
    casting, batches = _again(options, folder, progress)
    with progress.step("verify"):
        check = api.verify(replace(casting, pte=pte), batches)
    facts = summary_facts(casting.checked(check, {}))
    more = [SAME_WEIGHTS] if not check.passed and options.model else []
    text = "\n".join([headline(facts), *output_lines(facts, options.verbose), *more])
    return OK if check.passed else WRONG, facts["check"], "" if options.quiet else text


def _again(options: argparse.Namespace, folder: Path, progress: Progress) -> tuple[Casting, Iterable[Batch]]:
    if options.model is None:
        with progress.step("load"):
            return _from_folder(options, folder)
    data, plan = given(options), read_plan(folder)
    if "weights" in plan.settings:
        why = (
            f"its weights are {plan.settings['weights']}, and they are rounded with data: the model does not give them"
        )
        hint = f"ingot verify {folder} --data DATA"
        raise InputError("this artefact is verified with its folder alone", why=why, hint=hint)
    if data.batches is None:
        raise InputError("no data to verify on", hint="--data data.npz, or let build() return some")
    with progress.step("capture"):
        program = api.capture(data.loaded.model, data.example, **data.loaded.sizes)
    with progress.step("lower"):
        return api.lower(program, plan, recipe=saved_recipe(folder)), data.batches


def _from_folder(options: argparse.Namespace, folder: Path) -> tuple[Casting, Iterable[Batch]]:
    if options.calibrate is None:
        raise InputError("no data to verify on", hint="--data data.npz, or name the model too")
    casting = Casting.load(folder)
    program = casting.needed_evidence.program
    fixed = program.dynamic_shapes is None and not casting.plan.methods
    how: dict[str, Any] = {"mean": options.mean, "std": options.std, "fixed_shapes": fixed}
    return casting, load_calibration(options.calibrate, program.example_inputs, names=program.input_names, **how)


# ---- localize ----


def localize(options: argparse.Namespace) -> Answer:
    """Say where the error starts and, where asked, minify the model to the smallest that has it."""
    if options.reduce is None:
        refuse_ignored_options(options, "it limits --reduce", {"budget": "--budget"})
    if Path(options.model).is_dir():
        return _localize_folder(options)
    if len(options.target or ()) != 1:
        raise InputError("an error is looked for on one target at a time", hint="--target xnnpack")
    if options.reduce is not None:
        check_file(options.reduce)
    data, progress = given(options), Progress(quiet=options.quiet)
    batches = own_batches(data.calibration)
    try:
        finding = _find(options, data, batches, progress)
    except (LowerError, ArtefactError) as e:
        if options.reduce is None:
            raise
        return _reduced(options, data, batches, progress, exit_code(e), {}, [f"it does not run at all: {e}"])
    if finding.kind == "none" or options.reduce is None:
        return _found(finding, options)
    return _reduced(options, data, batches, progress, WRONG, json_ready(finding.to_dict()), lines(finding))


def _localize_folder(options: argparse.Namespace) -> Answer:
    sizes = {"dynamic_shapes": "--dynamic-shapes", "shapes": "--shapes"}
    unused = {"target": "--target", "recipe": "--recipe", "reduce": "--reduce", **sizes}
    refuse_ignored_options(options, "the folder of a cast has its own", unused)
    progress = Progress(quiet=options.quiet)
    with progress.step("load"):
        casting, batches = _from_folder(options, Path(options.model))
    if options.localize_seconds is not None:
        kept = casting.needed_evidence
        recipe = replace(kept.recipe, localize_seconds=options.localize_seconds)
        casting = replace(casting, evidence=replace(kept, recipe=recipe))
    with progress.step("localize"):
        return _found(api.localize(casting, batches), options)


def _found(finding: Finding, options: argparse.Namespace) -> Answer:
    text = "" if options.quiet else "\n".join(lines(finding))
    return OK if finding.kind == "none" else WRONG, json_ready(finding.to_dict()), text


def _find(options: argparse.Namespace, data: Given, batches: list[Batch], progress: Progress) -> Finding:
    recipe, target = asked_recipe(options), options.target[0]
    with progress.step("capture"):
        program = api.capture(data.loaded.model, data.example, **data.loaded.sizes)
    with progress.step("record") as tick:
        ranges = api.record(program, batches, on_batch=lambda n: tick(n, None))
    with progress.step("plan"):
        plan = api.plan(program, ranges, target, recipe=recipe)
    with progress.step("lower"):
        casting = api.lower(program, plan, recipe=recipe)
    with progress.step("localize"):
        return api.localize(casting, batches)


def _reduced(
    options: argparse.Namespace, data: Given, batches: list[Batch], progress: Progress, code: int,
    found: dict[str, Any], text: Iterable[str],
) -> Answer:  # fmt: skip
    try:
        with progress.step("reduce") as tick:
            done = api.reduce(
                data.loaded.model, data.example, options.reduce, target=options.target[0], calibration=batches,
                recipe=options.recipe, budget=options.budget or BUDGET, setup=_registers(options.model),
                on_trial=lambda n: tick(n, None),
            )  # fmt: skip
    except InputError as e:  # what was found stands
        return code, {**found, "reduction": {"error": str(e)}}, "\n".join([*text, f"not minified: {e}"])
    report = {**found, "reduction": json_ready(asdict(done))}
    return code, report, "" if options.quiet else "\n".join([*text, *_reduction(done)])


def _registers(model: str) -> str:
    """The line that loads the user's code, which registers their own ops and backends."""
    where, _, _ = model.rpartition(":")
    if where.endswith(".py"):
        return f"import runpy\n\nrunpy.run_path({str(Path(where).resolve())!r})"
    return f"import {where}" if where else ""


def _reduction(done: Reduction) -> Iterator[str]:
    yield str(done)
    yield f"  {done.failure}"


def lines(finding: Finding) -> Iterator[str]:
    """The verdict, then every value in graph order."""
    yield f"{finding.target}: {finding.verdict}"
    yield f"executed on {finding.executed_on}; lowered again {finding.lowerings} times to read intermediate values"
    headings = ("value", "op", "dtype", ">float to graph", ">graph to artefact", "at")
    yield table(headings, [_row(v, finding) for v in finding.values])
    yield from (f"note: {n}" for n in finding.notes)


def _row(value: ValueCheck, finding: Finding) -> tuple[str, ...]:
    rounding = "" if value.graph_db is None else decibel(value.graph_db)
    marks = [
        w for w, name in (("largest drop", finding.largest_sqnr_drop), ("HERE", finding.mismatch)) if name == value.name
    ]
    end = f"{value.source}{'  ← ' + ', '.join(marks) if marks else ''}"
    return value.name, value.op.removeprefix("aten."), value.stored, rounding, _apart(value), end


def _apart(value: ValueCheck) -> str:
    if value.artefact_db is None:
        return ""
    steps = "" if value.steps is None else f", {value.steps:.0f} steps"
    return f"{decibel(value.artefact_db)}{steps}"


# ---- scenarios ----


def run_scenario_command(options: argparse.Namespace) -> Answer:
    outcomes = run_scenario_folder(options.scenario, keep=options.keep)
    rows = [(o.name, "as expected" if o.passed else "WRONG", f"{o.steps:g}", decibel(o.sqnr_db)) for o in outcomes]
    text = table(("output", "", ">largest error in steps", ">SQNR"), rows)
    good = all(o.passed for o in outcomes)
    return OK if good else WRONG, {"outputs": [json_ready(asdict(o)) for o in outcomes]}, text
