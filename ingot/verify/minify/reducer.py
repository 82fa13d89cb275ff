"""From a model that fails to a file that shows it."""

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
from ingot.config.recipe import Recipe, read_toml, recipe_from
from ingot.core.atomic_file import atomic_write
from ingot.errors import InputError
from ingot.verify.minify.case import Case, Unit, case_of, units_of
from ingot.verify.minify.codegen import DATA, code_of, data_of, file_of
from ingot.verify.minify.ddmin import Budget, OutOfTime, smallest
from ingot.verify.minify.failure import Failure, failure_of
from ingot.verify.minify.shrink import shrunk

BATCHES = 8  # that the first trials are calibrated and checked with


@dataclass(frozen=True)
class Reduction:
    """A reproducer, and how it came to be."""

    path: Path
    failure: str
    ops_before: int
    ops: int
    trials: int
    finished: bool  # False: the budget ended the search, and it may be smaller yet
    reproduces: bool  # the file was run by itself and failed like the model
    output: str  # what it printed

    def __str__(self) -> str:
        state = "" if self.finished else "; the budget ended the search, more may find less"
        ran = "run by itself, it fails" if self.reproduces else "RUN BY ITSELF, IT DOES NOT FAIL"
        return f"{self.ops_before} ops cut down to {self.ops} in {self.trials} trials: {self.path}, {ran}{state}"


@dataclass
class _Trials:
    """What fails like the model did, smallest last."""

    wanted: Failure
    budget: Budget
    on_trial: Callable[[int], None] | None
    best: Case
    tried: dict[str, bool] = field(default_factory=dict)

    def fails(self, case: Case) -> bool:
        if not case.batches[0]:
            return False  # a model without inputs is another story
        text = f"{code_of(case)} {case.recipe} {[[tuple(x.shape) for x in b] for b in case.batches]}"
        if text not in self.tried:
            self.budget.spend()
            if self.on_trial:
                self.on_trial(self.budget.trials)
            self.tried[text] = self.wanted.same(tried(case))
        if self.tried[text]:
            self.best = case
        return self.tried[text]


def tried(case: Case) -> Failure | None:
    """Exactly what the file would do: its own text is run."""
    names: dict[str, Any] = {"torch": torch, DATA: data_of(case)}
    exec(compile(code_of(case), "<reproducer>", "exec"), names)
    return failure_of(names["net"], names["batches"], case.target, dict(case.recipe))


def reduce(
    model: Any,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    target: str,
    calibration: Iterable[Any],
    recipe: Any = None,
    budget: float = 300,
    setup: str = "",
    on_trial: Callable[[int], None] | None = None,
) -> Reduction:
    """Cut a model whose cast fails down to the smallest that fails alike, and write it as a file that runs by itself.

    `setup` is put at the top of the file: what registers ops or backends of your own.
    """
    program, demands = capture_program(model, example_inputs), _plain_recipe(recipe)
    given = list(islice(calibration, BATCHES))
    batches = [program.flatten(b) for b in given]
    wanted = failure_of(model, given, target, demands)
    whole = Case(program.module, tuple(b for b in batches if _alike(b, batches[0])), target, demands)
    if wanted is None:
        raise InputError("this model is cast without an error", hint="there is nothing to cut down")
    trials = _Trials(wanted, Budget(budget), on_trial, whole)
    finished = _searched(program, whole, trials)
    return _written(Path(path), trials, len(units_of(program.module)), finished, setup)


def _searched(program: Program, whole: Case, trials: _Trials) -> bool:
    """Ops first, then what is left of shapes and numbers; False if the budget ended it."""

    def fails(units: Sequence[Unit]) -> bool:
        return trials.fails(case_of(program, units, whole))

    units = units_of(program.module)
    if not fails(units):
        why = "the same ops by themselves, fed with recorded values, are cast without that error"
        raise InputError("the failure cannot be cut out of the model", why=why, hint="report the model as it is")
    try:
        smallest(units, fails)
        shrunk(trials.best, trials.fails)
    except OutOfTime:
        return False
    return True


def _alike(batch: tuple[Any, ...], first: tuple[Any, ...]) -> bool:
    """A reproducer has fixed shapes."""
    return [getattr(x, "shape", None) for x in batch] == [getattr(x, "shape", None) for x in first]


def _plain_recipe(recipe: Any) -> dict[str, Any]:
    """As a table, so that a file can hold it and demands can be left out one by one."""
    if isinstance(recipe, Recipe):
        usual = Recipe()
        return {f.name: v for f in fields(Recipe) if (v := getattr(recipe, f.name)) != getattr(usual, f.name)}
    table = dict(recipe) if isinstance(recipe, Mapping) else read_toml(Path(recipe)) if recipe is not None else {}
    recipe_from(table)  # refuse it here, not in a trial
    return table


def _written(path: Path, trials: _Trials, ops_before: int, finished: bool, setup: str) -> Reduction:
    case, failure = trials.best, trials.wanted.text
    title = f"{case.target}: a cast that fails, cut from {ops_before} ops down to {case.ops}."
    told = "\n".join(textwrap.wrap(failure, 100)).replace("\\", "/").replace('"', "'")
    if data := data_of(case):
        with atomic_write(path.with_suffix(".pt")) as f:
            torch.save(data, f)
    with atomic_write(path) as f:
        f.write(file_of(case, title, setup if _is_ones_own(case) else "", told).encode())
    done = _run(path)
    fails = done.returncode != 0 and trials.wanted.text.split(":")[0] in done.stderr
    said = (done.stderr + done.stdout).strip().splitlines()
    return Reduction(path, failure, ops_before, case.ops, trials.budget.trials, finished, fails, "\n".join(said[-3:]))


def _is_ones_own(case: Case) -> bool:
    """Ops that torch does not bring, or other backends: somebody has to register them."""
    ops = [unit[0].target for unit in units_of(case.module)]
    return "extra_backends" in case.recipe or any(getattr(op, "namespace", "aten") != "aten" for op in ops)


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    """By itself, with the packages that are seen here."""
    seen = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=seen, check=False)
