"""How a cast fails, and when two casts fail alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ingot import api
from ingot.config.recipe import Recipe, recipe_from
from ingot.core.artefact import Check
from ingot.errors import IngotError, MismatchError
from ingot.result.assemble import left_its_graph, run_and_compare

_NUMBERS_AND_NAMES = re.compile(r"0x[0-9a-f]+|'[^']*'|\[[^\]]*\]|\([^)]*\)|[-+]?\d[\d.e+-]*|\b\w+_\d+\b")


@dataclass(frozen=True)
class Failure:
    """An error with its mark: what stays the same while the model gets smaller."""

    mark: str
    text: str

    def same(self, other: Failure | None) -> bool:
        return other is not None and other.mark == self.mark


def failure_of(model: Any, batches: Sequence[Any], target: str, recipe: Any) -> Failure | None:
    """Cast the model; None if that goes well."""
    settings = recipe_from(recipe)
    try:
        check = _cast(model, batches, target, settings)
    except IngotError as e:
        return Failure(f"{type(e).__name__}: {_plain(e.what)}: {_plain(e.why or '')}", f"{type(e).__name__}: {e}")
    except Exception as e:  # a bug of ours is a failure like any other
        return Failure(f"{type(e).__name__}: {_plain(str(e))}", f"{type(e).__name__}: {e}")
    return None if check.passed else _wrong(check, settings)


def _cast(model: Any, batches: Sequence[Any], target: str, recipe: Recipe) -> Check:
    """Like ingot.cast, but nobody looks for a culprit."""
    program = api.capture(model, batches[0])
    plan = api.plan(program, api.record(program, batches), target, recipe=recipe)
    return run_and_compare(api.lower(program, plan, recipe=recipe), batches)


def _wrong(check: Check, recipe: Recipe) -> Failure:
    problems = [o.problem for o in check.outputs if o.problem]
    mark = "leaves its quantized graph" if left_its_graph(check, recipe) else _plain(problems[0])
    return Failure(f"{MismatchError.__name__}: {mark}", f"{MismatchError.__name__}: {'; '.join(problems)}")


def _plain(text: str) -> str:
    """Without what changes with every graph: numbers, shapes, names; and without the runtime's last lines."""
    return " ".join(_NUMBERS_AND_NAMES.sub("#", text.split("; its last lines")[0]).split())[:120]
