"""The verbs: each takes the parsed options and gives an exit code, an object for --json and a text for people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ingot import api
from ingot.cli import demo
from ingot.cli.files import check_file, check_folder, read_bytes, read_plan, write_folders
from ingot.cli.output import OK, WRONG, Answer
from ingot.config.recipe import recipe_from
from ingot.core.atomic_file import atomic_write
from ingot.core.progress import Progress
from ingot.data import LoadedModel, load_calibration, load_model
from ingot.errors import InputError
from ingot.plan.model import Plan
from ingot.result.casting import Casting
from ingot.result.report.facts import facts_of, to_json
from ingot.result.report.html import page
from ingot.result.report.text import headline, output_lines, summary, summary_facts
from ingot.result.scenario import run_scenario_folder
from ingot.targets.registry import Availability

SAME_WEIGHTS = "try: is it the model that was cast? build() must give the same weights each time: seed it, or load them"


def run(options: argparse.Namespace) -> Answer:
    verbs = {"cast": cast, "plan": plan, "why": why, "diff": diff, "verify": verify, "run": run_scenario}
    verbs["localize"] = localize
    return {**verbs, "generate": generate, "targets": targets, "demo": demo_}[options.command](options)


def generate(options: argparse.Namespace) -> Answer:
    from ingot.cli import llm_commands as language

    return language.generate(options)


def cast(options: argparse.Namespace) -> Answer:
    if options.hf is not None:
        from ingot.cli import llm_commands as language

        return language.cast(options, _files)
    if options.model is None:
        raise InputError("no model was named", hint="ingot cast net.py:build …, or --hf DIR for a language model")
    check_folder(options.output)
    if options.scenario and "vgf" not in options.target:
        raise InputError("--scenario is for vgf", why="a scenario is made of .vgf files", hint="--target vgf")
    recipe = recipe_from(options.recipe)
    loaded, example, batches = _inputs(options)
    targets = list(dict.fromkeys(options.target))
    castings = api.cast(
        loaded.model,
        example,
        target=targets if len(targets) > 1 else targets[0],
        calibration=batches,
        recipe=recipe,
        dynamic_shapes=loaded.dynamic_shapes,
        weights=options.weights,
        on_mismatch=options.on_mismatch,
        progress=Progress(quiet=options.quiet),
    )
    code, data, text = _cast_answer(castings, options.output, options.report)
    if options.scenario:
        _write_scenarios(castings, options.output)
    return code, data, "" if options.quiet else text


def _write_scenarios(castings: Casting | Mapping[str, Casting], output: Path) -> None:
    for folder, casting in _folders(castings, output).items():
        if casting.evidence.target.runner.writes_scenarios:
            casting.scenario(folder / "scenario")


def _folders(castings: Casting | Mapping[str, Casting], output: Path) -> dict[Path, Casting]:
    """One target fills the folder, several fill one folder each below it."""
    return {output / t: c for t, c in castings.items()} if isinstance(castings, Mapping) else {output: castings}


def _cast_answer(castings: Casting | Mapping[str, Casting], output: Path, report: bool) -> Answer:
    each = _folders(castings, output)
    write_folders({folder: _files(c, report) for folder, c in each.items()})
    facts = {c.target: {**summary_facts(c), "folder": str(folder)} for folder, c in each.items()}
    code = OK if all(c.check is not None and c.check.passed for c in each.values()) else WRONG
    text = "\n\n".join(f"{summary(c)}\nwritten to {folder}" for folder, c in each.items())
    return code, _only(facts), text


def _files(casting: Casting, report: bool) -> dict[str, bytes]:
    facts = facts_of(casting)
    written = {"plan.json": casting.plan.to_json(), "report.json": to_json(facts)}
    files = {"model.pte": casting.pte, **{name: text.encode() for name, text in written.items()}}
    for number, delegate in enumerate(casting.delegates, 1):
        files |= {f"delegate-{number}-{name}": data for name, data in delegate.files.items()}
    return {**files, "report.html": page(facts).encode()} if report else files


def plan(options: argparse.Namespace) -> Answer:
    if options.output:
        check_file(options.output)
    recipe = recipe_from(options.recipe)
    loaded, example, batches = _inputs(options)
    progress = Progress(quiet=options.quiet)
    with progress.step("capture"):
        program = api.capture(loaded.model, example, dynamic_shapes=loaded.dynamic_shapes)
    with progress.step("record") as tick:
        ranges = api.record(program, batches, on_batch=lambda n: tick(n, None))
    with progress.step("plan"):
        plans = {t: api.plan(program, ranges, t, recipe=recipe) for t in options.target}
    return _plan_answer(plans, options.output, options.quiet)


def _plan_answer(plans: dict[str, Plan], output: Path | None, quiet: bool) -> Answer:
    shown = _only({target: json.loads(plan.to_json()) for target, plan in plans.items()})
    text = json.dumps(shown, indent=2)
    if output is None:
        return OK, shown, text
    with atomic_write(output) as f:
        f.write(text.encode() + b"\n")
    return OK, {"file": str(output)}, "" if quiet else f"written to {output}"


def why(options: argparse.Namespace) -> Answer:
    text = read_plan(options.plan).why(options.value)
    return OK, {"value": options.value, "why": text}, text


def diff(options: argparse.Namespace) -> Answer:
    text = read_plan(options.first).diff(read_plan(options.second))
    return OK, {"diff": text}, text or "no difference"


def verify(options: argparse.Namespace) -> Answer:
    """Capture and replay the plan again for the reference; the program that runs is the one in the file."""
    folder = options.artefact if options.artefact.is_dir() else options.artefact.parent
    pte = read_bytes(folder / "model.pte" if options.artefact.is_dir() else options.artefact)
    plan = read_plan(folder)
    loaded, example, batches = _inputs(options)
    progress = Progress(quiet=options.quiet)
    with progress.step("capture"):
        program = api.capture(loaded.model, example, dynamic_shapes=loaded.dynamic_shapes)
    with progress.step("lower"):
        casting = replace(api.lower(program, plan), pte=pte)
    with progress.step("verify"):
        check = api.verify(casting, batches)
    facts = summary_facts(casting.checked(check, {}))
    text = "\n".join([headline(facts), *output_lines(facts), *([] if check.passed else [SAME_WEIGHTS])])
    return OK if check.passed else WRONG, facts["check"], "" if options.quiet else text


def localize(options: argparse.Namespace) -> Answer:
    from ingot.cli import localize_command as localizing

    return localizing.localize(options, *_inputs(options))


def run_scenario(options: argparse.Namespace) -> Answer:
    outputs = run_scenario_folder(options.scenario, keep=options.keep)
    lines = [
        f"{o.name}: {'as expected' if o.passed else 'WRONG'}, off by at most {o.steps:g}, {o.sqnr_db:.1f} dB"
        for o in outputs
    ]
    good = all(o.passed for o in outputs)
    return OK if good else WRONG, {"outputs": [asdict(o) for o in outputs]}, "\n".join(lines)


def targets(options: argparse.Namespace) -> Answer:
    known = api.targets()
    return OK, {"targets": [asdict(t) for t in known]}, "\n".join(line for t in known for line in _target_lines(t))


def _target_lines(target: Availability) -> Iterator[str]:
    yield f"{target.name:<16}{'installed' if target.installed else 'missing':<11}{target.description}"
    yield from (f"  {name} {version}" for name, version in target.found.items())
    yield from (f"  {name} is missing: {install}" for name, install in target.missing.items())
    yield from (f"  {name} would help to verify: {install}" for name, install in target.extras.items())
    yield from (f"  option {name}: {purpose}" for name, purpose in target.options.items())


def demo_(options: argparse.Namespace) -> Answer:
    outcome = demo.demonstrate(Progress())
    return OK if outcome.good else WRONG, demo.as_data(outcome), demo.text(outcome)


def _inputs(options: argparse.Namespace) -> tuple[LoadedModel, tuple[Any, ...], Any]:
    """The model, one example of its inputs, and the batches."""
    loaded = load_model(options.model)
    example, batches = loaded.example_inputs, loaded.calibration
    if options.calibrate:
        how = {"mean": options.mean, "std": options.std, "fixed_shapes": loaded.fixed_shapes}
        batches = load_calibration(options.calibrate, example, names=loaded.input_names, **how)
    if batches is None:
        hint = "--calibrate data.npz, or let build() return (model, example_inputs, calibration)"
        raise InputError("no calibration data", why="ranges are measured, never guessed", hint=hint)
    return loaded, next(iter(batches)) if example is None else example, batches


def _only(facts: dict[str, Any]) -> dict[str, Any]:
    """For one target, its facts alone."""
    return next(iter(facts.values())) if len(facts) == 1 else facts
