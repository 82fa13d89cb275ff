"""How a cast fails, and when two casts fail in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.config.recipe import Recipe, RecipeLike, recipe_from
from ingot.core.artefact import Check
from ingot.errors import IngotError, MismatchError
from ingot.verify.check import disagrees_with_graph

# Casts a model on batches for a target, and executes it: (model, batches, target, recipe) -> Check.
Attempt = Callable[[Any, Sequence[Any], str, Recipe], Check]

_NUMBERS_AND_NAMES = re.compile(r"0x[0-9a-f]+|'[^']*'|\[[^\]]*\]|\([^)]*\)|[-+]?\d[\d.e+-]*|\b\w+_\d+\b")


@dataclass(frozen=True)
class Failure:
    """An error with its signature: the part of the message that does not change as the model gets smaller."""

    signature: str
    text: str

    def same(self, other: Failure | None) -> bool:
        return other is not None and other.signature == self.signature


def failure_of(attempt: Attempt, model: Any, batches: Sequence[Any], target: str, recipe: RecipeLike) -> Failure | None:
    """Cast the model with `attempt`; None if it passes."""
    settings = recipe_from(recipe)
    try:
        check = attempt(model, batches, target, settings)
    except IngotError as e:
        return Failure(
            f"{type(e).__name__}: {normalized(e.what)}: {normalized(e.why or '')}", f"{type(e).__name__}: {e}"
        )
    except Exception as e:  # a bug in Ingot is a failure like any other
        return Failure(f"{type(e).__name__}: {normalized(str(e))}", f"{type(e).__name__}: {e}")
    return None if check.passed else _mismatch(check, settings)


def _mismatch(check: Check, recipe: Recipe) -> Failure:
    problems = [o.problem for o in check.outputs if o.problem]
    signature = "disagrees with its graph" if disagrees_with_graph(check, recipe) else normalized(problems[0])
    return Failure(f"{MismatchError.__name__}: {signature}", f"{MismatchError.__name__}: {'; '.join(problems)}")


def normalized(text: str) -> str:
    """Without what differs from graph to graph: numbers, shapes, names and the runtime's last lines."""
    return " ".join(_NUMBERS_AND_NAMES.sub("#", text.split("; its last lines")[0]).split())[:120]
