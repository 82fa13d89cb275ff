"""The goal that the command line asks for: `--goal top1 --goal-data net.py:pairs --drop 0.01`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ingot.cli.inputs import Given, named_data, refuse_ignored_options
from ingot.data.user_code import call_user_function, resolve_object
from ingot.errors import InputError
from ingot.goal.goal import Goal
from ingot.goal.metrics import NAMED

WITH_GOAL = {"drop": "--drop", "bar": "--bar", "goal_data": "--goal-data"}


def asked_goal(options: argparse.Namespace, data: Given) -> Goal | None:
    if options.goal is None:
        refuse_ignored_options(options, "it is for --goal", WITH_GOAL)
        return None
    own = ":" in options.goal
    metric = resolve_object(options.goal, callable)[0] if own else options.goal
    labelled = own or (metric in NAMED and not NAMED[metric].compares_with_float)
    found = _pairs(options.goal_data) if labelled else _batches(options, data)
    return Goal(metric, found, drop=options.drop, bar=options.bar, lower_is_better=options.lower_is_better)


def _pairs(source: str | None) -> Iterable[Any]:
    """Labels come with the data, so they come from the user's code."""
    if source is None or ":" not in source:
        hint = "--goal-data net.py:pairs, a function that returns [(inputs, label), …]"
        raise InputError("this metric needs data with labels", hint=hint)
    function, where = resolve_object(source, lambda o: callable(o) or isinstance(o, (list, tuple)))
    return call_user_function(function, source, where) if callable(function) else function


def _batches(options: argparse.Namespace, data: Given) -> Iterable[Any]:
    found = named_data(options, data.loaded, options.goal_data or options.validation)
    if found is None:
        hint = "--goal-data unseen.npz, or --validation"
        raise InputError("the goal needs data", why="it is measured on data that was not calibrated on", hint=hint)
    return found
