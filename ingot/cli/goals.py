"""The goal that the command line asks for: `--goal top1 --goal-data net.py:pairs --drop 0.01`."""

from __future__ import annotations

import argparse

from ingot.cli.inputs import names_of, refuse_ignored_options
from ingot.data.named_inputs import Given
from ingot.goal.goal import Goal
from ingot.goal.named_goal import named_goal

WITH_GOAL = {"drop": "--drop", "bar": "--bar", "goal_data": "--goal-data"}


def asked_goal(options: argparse.Namespace, data: Given) -> Goal | None:
    if options.goal is None:
        refuse_ignored_options(options, "it is for --goal", WITH_GOAL)
        return None
    wanted = (options.goal, options.goal_data, options.drop, options.bar, options.lower_is_better)
    return named_goal(names_of(options), data.loaded, *wanted)
