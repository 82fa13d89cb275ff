"""Reduce a failing model and write the reproducer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ingot.capture.export import Program, capture_program
from ingot.capture.inputs import copy_of
from ingot.config.recipe import Recipe, RecipeLike, read_toml, recipe_from
from ingot.core.atomic_file import atomic_write
from ingot.core.deadline import OutOfTime
from ingot.errors import InputError
from ingot.verify.minify.codegen import DATA, model_source, reproducer_source, saved_tensors
from ingot.verify.minify.ddmin import Budget, ddmin
from ingot.verify.minify.failure import Attempt, Failure, failure_of
from ingot.verify.minify.shrink import shrink
from ingot.verify.minify.variant import Unit, Variant, units_of, variant_of

BATCHES = 8  # for calibration and verification of the first trials


@dataclass(frozen=True)
class Reduction:
    """A reproducer, and how it was found."""

    path: Path
    failure: str
    ops_before: int
    ops: int
    trials: int
    finished: bool  # False: the time budget ended the search, a smaller one may exist
    reproduces: bool  # the file was run in a new process and failed like the model
    output: str  # what it printed

    def __str__(self) -> str:
        state = "" if self.finished else "; the time budget ended the search, a larger one may reduce further"
        ran = "the file fails in the same way" if self.reproduces else "THE FILE DOES NOT FAIL when run by itself"
        return f"reduced from {self.ops_before} ops to {self.ops} in {self.trials} trials: {self.path}, {ran}{state}"


@dataclass
class _Trials:
    """Runs variants and keeps the smallest that fails like the model."""

    wanted: Failure
    budget: Budget
    on_trial: Callable[[int], None] | None
    attempt: Attempt
    best: Variant
    tried: dict[str, bool] = field(default_factory=dict)

    def fails(self, variant: Variant) -> bool:
        if not variant.batches[0]:
            return False  # a model without inputs would fail in another way
        text = f"{model_source(variant)} {variant.recipe} {[[tuple(x.shape) for x in b] for b in variant.batches]}"
        if text not in self.tried:
            self.budget.spend()
            if self.on_trial:
                self.on_trial(self.budget.trials)
            self.tried[text] = self.wanted.same(_failure_of_variant(self.attempt, variant))
        if self.tried[text]:
            self.best = variant
        return self.tried[text]


def _failure_of_variant(attempt: Attempt, variant: Variant) -> Failure | None:
    """Execute the text that the file would contain."""
    names: dict[str, Any] = {"torch": torch, DATA: saved_tensors(variant)}
    exec(compile(model_source(variant), "<reproducer>", "exec"), names)
    return failure_of(attempt, names["net"], names["batches"], variant.target, dict(variant.recipe))


def reduce_model(
    attempt: Attempt,
    model: Any,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    target: str,
    calibration: Iterable[Any],
    recipe: RecipeLike = None,
    budget: float = 300,
    setup: str = "",
    on_trial: Callable[[int], None] | None = None,
) -> Reduction:
    """Reduce a model whose cast fails to the smallest that fails alike, and write it as a self-contained Python file.

    `attempt` casts a model and executes it. `setup` is code for the top of the file: it registers your own ops.
    """
    program, settings = capture_program(model, example_inputs), _plain_recipe(recipe)
    given = [copy_of(b) for b in islice(calibration, BATCHES)]
    batches = [program.flatten(b) for b in given]
    wanted = failure_of(attempt, model, given, target, settings)
    full = Variant(program.module, tuple(b for b in batches if _same_shapes(b, batches[0])), target, settings)
    if wanted is None:
        raise InputError("this model is cast without an error", hint="there is nothing to reduce")
    trials = _Trials(wanted, Budget(budget), on_trial, attempt, full)
    finished = _minimize(program, full, trials)
    return _written(Path(path), trials, len(units_of(program.module)), finished, setup)


def _minimize(program: Program, full: Variant, trials: _Trials) -> bool:
    """Fewer ops first, then smaller shapes and simpler constants; False if the budget ended it."""

    def fails(units: Sequence[Unit]) -> bool:
        return trials.fails(variant_of(program, units, full))

    units = units_of(program.module)
    if not fails(units):
        why = "the same ops on recorded inputs are cast without that error"
        raise InputError("the failure cannot be reduced", why=why, hint="report the unreduced model")
    try:
        ddmin(units, fails)
        shrink(trials.best, trials.fails)
    except OutOfTime:
        return False
    return True


def _same_shapes(batch: tuple[Any, ...], first: tuple[Any, ...]) -> bool:
    """A reproducer has fixed shapes."""
    return [getattr(x, "shape", None) for x in batch] == [getattr(x, "shape", None) for x in first]


def _plain_recipe(recipe: Any) -> dict[str, Any]:
    """As a dict, so that it can be written to the file and its keys can be removed one by one."""
    if isinstance(recipe, Recipe):
        default = Recipe()
        return {f.name: v for f in fields(Recipe) if (v := getattr(recipe, f.name)) != getattr(default, f.name)}
    table = dict(recipe) if isinstance(recipe, Mapping) else read_toml(Path(recipe)) if recipe is not None else {}
    recipe_from(table)  # raise here, not in a trial
    return table


def _written(path: Path, trials: _Trials, ops_before: int, finished: bool, setup: str) -> Reduction:
    variant, failure = trials.best, trials.wanted.text
    title = f"{variant.target}: a cast that fails, reduced from {ops_before} ops to {variant.ops}."
    message = "\n".join(textwrap.wrap(failure, 100)).replace("\\", "/").replace('"', "'")
    if data := saved_tensors(variant):
        with atomic_write(path.with_suffix(".pt")) as f:
            torch.save(data, f)
    # Without the setup, where that suffices: only a run shows whether the failure needs it.
    for code in dict.fromkeys(("" if not _needs_setup(variant) else setup, setup)):
        with atomic_write(path) as f:
            f.write(reproducer_source(variant, title, code, message).encode())
        done = _run(path)
        fails = done.returncode != 0 and trials.wanted.text.split(":")[0] in done.stderr
        if fails:
            break
    printed = (done.stderr + done.stdout).strip().splitlines()
    return Reduction(
        path, failure, ops_before, variant.ops, trials.budget.trials, finished, fails, "\n".join(printed[-3:])
    )


def _needs_setup(variant: Variant) -> bool:
    """It has custom ops or extra backends, which must be registered."""
    ops = [unit[0].target for unit in units_of(variant.module)]
    return "extra_backends" in variant.recipe or any(getattr(op, "namespace", "aten") != "aten" for op in ops)


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    """In a new process, with the import path of this one."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, check=False)
