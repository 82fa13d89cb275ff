"""Commands that print information: why, diff, targets, schema, demo."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from ingot import api
from ingot.cli import demo
from ingot.cli.files import read_plan
from ingot.cli.output import OK, WRONG, Answer
from ingot.cli.tables import table
from ingot.config.schema import recipe_schema
from ingot.core.progress import Progress
from ingot.errors import InputError
from ingot.fleet.spec import fleet_schema
from ingot.plan.plan_data import Plan
from ingot.targets.registry import Availability


def why(options: argparse.Namespace) -> Answer:
    text = read_plan(options.plan, options.target).why(options.value)
    return OK, {"value": options.value, "why": text}, text


def diff(options: argparse.Namespace) -> Answer:
    first, second = _two(options)
    text = first.diff(second)
    return OK, {"diff": text}, text or "no difference"


def _two(options: argparse.Namespace) -> tuple[Plan, Plan]:
    if options.second is None and len(options.target) != 2:
        hint = "ingot diff one.json two.json, or ingot diff plans.json --target xnnpack --target vgf"
        raise InputError("two plans are compared", why="one was named", hint=hint)
    first, second = (options.target * 2)[:2] if options.target else (None, None)
    return read_plan(options.first, first), read_plan(options.second or options.first, second)


def targets(options: argparse.Namespace) -> Answer:
    known = api.targets()
    rows = [(t.name, "installed" if t.installed else "missing", t.description) for t in known]
    lines = [table(("target", "", ""), rows), *(line for t in known for line in _target_lines(t))]
    return OK, {"targets": [asdict(t) for t in known]}, "\n".join(lines)


def _target_lines(target: Availability) -> Iterator[str]:
    said = [
        *(f"  {name} is missing: {install}" for name, install in target.missing.items()),
        *(f"  optional, enables verification: {name}: {install}" for name, install in target.extras.items()),
        *(f"  option {name}: {purpose}" for name, purpose in target.options.items()),
    ]
    if said:
        yield f"{target.name}:"
        yield from said


def schema(options: argparse.Namespace) -> Answer:
    text = fleet_schema() if options.of == "fleet" else recipe_schema()
    return OK, json.loads(text), text


def run_demo_command(options: argparse.Namespace) -> Answer:
    outcome = demo.demonstrate(Progress())
    return OK if outcome.good else WRONG, demo.as_data(outcome), demo.text(outcome)
