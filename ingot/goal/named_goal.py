"""A goal as text names it: `--goal top1 --goal-data net.py:pairs --drop 0.01`, or in a fleet file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingot.data.models import LoadedModel
from ingot.data.named_inputs import NamedInputs, named_data
from ingot.data.user_code import call_user_function, resolve_object
from ingot.errors import InputError
from ingot.goal.goal import Goal
from ingot.goal.metrics import NAMED


def named_goal(
    names: NamedInputs, loaded: LoadedModel, metric: str, data: str | None, drop: float | None, bar: float | None,
    lower_is_better: bool = False,
) -> Goal:  # fmt: skip
    """`metric` is one of ours, or `file.py:function` of the user's."""
    own = ":" in metric
    function = resolve_object(metric, callable)[0] if own else metric
    labelled = own or (metric in NAMED and not NAMED[metric].compares_with_float)
    found = _pairs(data) if labelled else _batches(names, loaded, data)
    return Goal(function, found, drop=drop, bar=bar, lower_is_better=lower_is_better)


def _pairs(source: str | None) -> Iterable[Any]:
    """Labels come with the data, so they come from the user's code."""
    if source is None or ":" not in source:
        hint = "--goal-data net.py:pairs, a function that returns [(inputs, label), …]"
        raise InputError("this metric needs data with labels", hint=hint)
    function, where = resolve_object(source, lambda o: callable(o) or isinstance(o, (list, tuple)))
    return call_user_function(function, source, where) if callable(function) else function


def _batches(names: NamedInputs, loaded: LoadedModel, source: str | None) -> Iterable[Any]:
    found = named_data(names, loaded, source or names.validation)
    if found is None:
        hint = "--goal-data unseen.npz, or --validation"
        raise InputError("the goal needs data", why="it is measured on data that was not calibrated on", hint=hint)
    return found
