"""The verb that looks for an error: a table in graph order, a verdict, and a reproducer where one is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ingot import api
from ingot.cli.files import check_file
from ingot.cli.output import OK, WRONG, Answer, exit_code
from ingot.config.recipe import recipe_from
from ingot.core.progress import Progress
from ingot.data import LoadedModel
from ingot.errors import ArtefactError, InputError, LowerError
from ingot.result.report.text import decibel, json_ready
from ingot.verify.localize.finding import Finding, ValueCheck
from ingot.verify.minify.reducer import Reduction, reduce


def localize(options: argparse.Namespace, loaded: LoadedModel, example: Any, batches: Iterable[Any]) -> Answer:
    """Cast the model, say where its error starts and, where asked, cut it down to the smallest that has it."""
    if len(options.target) != 1:
        raise InputError("an error is looked for on one target at a time", hint="--target xnnpack")
    if options.reduce is not None:
        check_file(options.reduce)
    progress, kept = Progress(quiet=options.quiet), list(batches)
    try:
        finding = _find(options, loaded, example, kept, progress)
    except (LowerError, ArtefactError) as e:
        if options.reduce is None:
            raise
        return _reduced(options, loaded, example, kept, progress, exit_code(e), {}, [f"it does not run at all: {e}"])
    found = json_ready(finding.to_dict())
    if finding.kind == "none" or options.reduce is None:
        return OK if finding.kind == "none" else WRONG, found, "" if options.quiet else "\n".join(lines(finding))
    return _reduced(options, loaded, example, kept, progress, WRONG, found, lines(finding))


def _find(
    options: argparse.Namespace, loaded: LoadedModel, example: Any, batches: list[Any], progress: Progress
) -> Finding:
    recipe, target = recipe_from(options.recipe), options.target[0]
    with progress.step("capture"):
        program = api.capture(loaded.model, example, dynamic_shapes=loaded.dynamic_shapes)
    with progress.step("record") as tick:
        ranges = api.record(program, batches, on_batch=lambda n: tick(n, None))
    with progress.step("plan"):
        plan = api.plan(program, ranges, target, recipe=recipe)
    with progress.step("lower"):
        casting = api.lower(program, plan, recipe=recipe)
    with progress.step("localize"):
        return api.localize(casting, batches)


def _reduced(
    options: argparse.Namespace, loaded: LoadedModel, example: Any, batches: list[Any], progress: Progress,
    code: int, found: dict[str, Any], text: Iterable[str],
) -> Answer:  # fmt: skip
    how = {"target": options.target[0], "calibration": batches, "recipe": options.recipe, "budget": options.budget}
    try:
        with progress.step("reduce") as tick:
            setup, count = _registers(options.model), lambda n: tick(n, None)
            done = reduce(loaded.model, example, options.reduce, **how, setup=setup, on_trial=count)
    except InputError as e:  # what was found stands
        return code, {**found, "reduction": {"error": str(e)}}, "\n".join([*text, f"not cut down: {e}"])
    data = {**found, "reduction": json_ready(asdict(done))}
    return code, data, "" if options.quiet else "\n".join([*text, *_reduction(done)])


def _registers(model: str) -> str:
    """The line that loads the user's own code, by which ops and backends of one's own are registered."""
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
    yield f"executed on {finding.executed_on}; lowered again {finding.lowerings} times to look inside"
    yield f"{'value':<28}{'op':<30}{'stored':<8}{'float ↔ graph':>14}{'graph ↔ artefact':>26}  at"
    yield from (_row(v, finding) for v in finding.values)
    yield from (f"note: {n}" for n in finding.notes)


def _row(value: ValueCheck, finding: Finding) -> str:
    op = value.op.removeprefix("aten.")
    rounding = "" if value.graph_db is None else decibel(value.graph_db)
    marks = [w for w, name in (("coarsest", finding.coarsest), ("HERE", finding.strays)) if name == value.name]
    end = f"{value.source}{'  ← ' + ', '.join(marks) if marks else ''}"
    return f"{value.name:<28}{op:<30}{value.stored:<8}{rounding:>14}{_apart(value):>26}  {end}"


def _apart(value: ValueCheck) -> str:
    if value.artefact_db is None:
        return ""
    steps = "" if value.steps is None else f", {value.steps:.0f} steps"
    return f"{decibel(value.artefact_db)}{steps}"
