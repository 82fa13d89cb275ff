"""What a fleet file says: models with their data, targets, recipes. `ingot sweep fleet.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ingot.config.recipe import read_toml
from ingot.config.schema import schema_of
from ingot.config.validation import checked, parsed
from ingot.data.named_inputs import NamedInputs
from ingot.errors import InputError, TargetError, nearest

NAME = re.compile(r"[\w.+-]+$")  # names are folders


@checked("a goal of a fleet")
class FleetGoal:
    """As `ingot cast --goal METRIC --goal-data DATA --drop D` takes it."""

    metric: str
    data: str
    drop: float | None = None
    bar: float | None = None
    lower_is_better: bool = False


@checked("a model of a fleet")
class FleetModel:
    """As `ingot cast MODEL --calibrate DATA` takes it; paths are relative to the fleet file."""

    model: str
    calibrate: str | None = None
    validation: str | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    dynamic_shapes: list[str] = field(default_factory=list)
    goal: FleetGoal | None = None
    targets: list[str] | None = None
    """Instead of the targets of the fleet."""
    recipes: list[str] | None = None
    """Names of recipes, instead of all of them."""
    depends: list[str] = field(default_factory=list)
    """Files that the model reads and Python does not see being opened; a change of one makes the sweep start again."""

    @property
    def inputs(self) -> NamedInputs:
        shapes = tuple(self.dynamic_shapes)
        return NamedInputs(self.model, self.calibrate, self.validation, self.mean, self.std, shapes, "calibrate =")


@checked("the resources of a cell")
class Resources:
    """What a cell asks of a Ray cluster."""

    cpus: float = 1.0
    memory_gb: float | None = None
    custom: dict[str, float] = field(default_factory=dict)
    """Custom resources by name, such as `arm_board`."""


@checked("the fleet")
class Fleet:
    """Every model × target × recipe is a cell."""

    targets: list[str]
    models: dict[str, FleetModel]
    recipes: dict[str, str | dict[str, Any]] = field(default_factory=lambda: {"default": {}})
    """A TOML file, or the keys of a recipe, by name."""
    timeout: float = 900.0
    """The longest time of a cell, in seconds."""
    measure: bool = False
    """Measure latency. Such a cell runs alone on its machine."""
    resources: dict[str, Resources] = field(default_factory=dict)
    """By target."""

    def __post_init__(self) -> None:
        for name in (*self.models, *self.recipes, *self.targets):
            if not NAME.match(name):
                raise InputError(f"'{name}' cannot name a folder", hint="letters, digits, '.', '-', '+' and '_'")
        if not self.models or not self.targets or not self.recipes:
            hint = 'targets = ["xnnpack"], then [models.NAME] with model = "net.py:build"'
            raise InputError("a fleet needs targets, models and recipes", hint=hint)
        for name, model in self.models.items():
            for unknown in (r for r in model.recipes or () if r not in self.recipes):
                what = f"models.{name} asks for a recipe '{unknown}' that the fleet does not have"
                raise InputError(what, hint=nearest(unknown, self.recipes))

    def cells(self) -> Iterator[tuple[str, str, str]]:
        """Model, target and recipe of each cell."""
        for name, model in self.models.items():
            for target in model.targets or self.targets:
                yield from ((name, target, recipe) for recipe in model.recipes or self.recipes)


def fleet_schema() -> str:
    """Of a fleet file, for editors."""
    return schema_of(Fleet, "Ingot fleet")


def check_targets(fleet: Fleet, known: Collection[str]) -> None:
    """A misspelt target is told before the first cell, not after the last."""
    names = [*fleet.targets, *(t for m in fleet.models.values() for t in m.targets or ())]
    for name in (n for n in names if n not in known):
        raise TargetError(f"unknown target '{name}' in the fleet", hint=nearest(name, known))


def read_fleet(path: Path) -> Fleet:
    return fleet_from(read_toml(path, "the fleet"))


def fleet_from(data: Mapping[str, Any]) -> Fleet:
    return parsed(Fleet, dict(data), "the fleet")
