"""Demands on parts of a model: precision, range estimator, weights or tensor specs of the ops that a scope selects."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from ingot.config.tensor_specs import OneSpec, Specs
from ingot.config.validation import checked
from ingot.errors import InputError, nearest

PRECISIONS = ("int8", "int16", "dynamic", "float")  # dynamic: a float op that quantizes its input at run time
WEIGHTS = ("int8", "int4")
SELECTORS = ("op", "type", "path", "name", "feeds")
RANGE_METHODS = ("auto", "minmax", "percentile", "mse", "entropy")
NUMBERS = {"percentile": (50.0, 100.0), "mse": (0.0, 1000.0)}  # methods with a parameter, and its limits


def _check_method(text: str) -> str:
    """A range estimator by name; some take a number: `percentile:99.9`, `mse:4` (clipping error counts four times)."""
    name, _, number = text.partition(":")
    if name not in RANGE_METHODS or (number and name not in NUMBERS):
        raise InputError(f"unknown range method '{text}'", hint=nearest(name, RANGE_METHODS))
    low, high = NUMBERS.get(name, (0.0, 0.0))
    if number and not (_is_number(number) and low < float(number) <= high):
        raise InputError(f"invalid parameter in '{text}'", hint=f"{name}:x with x over {low:g} and up to {high:g}")
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


RangeMethod = Annotated[str, AfterValidator(_check_method), Field(examples=["auto", "percentile:99.9", "mse:4"])]


@checked("a scope")
class Scope:
    """A demand on some ops, selected by exactly one of: op, module type, module path, value name, or what they feed.

    `*` matches any text.
    """

    precision: Annotated[str | None, Field(json_schema_extra={"enum": [*PRECISIONS, None]})] = None
    range: RangeMethod | None = None
    op: str | None = None
    type: str | None = None
    path: str | None = None
    name: str | None = None
    feeds: str | None = None  # "grid_sampler*:1": what reaches nothing but operand 1 of those ops
    weights: Annotated[str | None, Field(json_schema_extra={"enum": [*WEIGHTS, None]})] = None
    # How the selected ops read their operands (by position) and store their result.
    inputs: Specs = ()
    output: OneSpec = None

    def __post_init__(self) -> None:
        if len(self.chosen) != 1:
            given = ", ".join(self.chosen) or "none"
            raise InputError(f"a scope needs exactly one selector of {', '.join(SELECTORS)}", why=f"given: {given}")
        if self.feeds is not None and not self.feeds.rpartition(":")[2].isdecimal():
            raise InputError(f"'{self.feeds}' names no operand of an op", hint="feeds = 'grid_sampler*:1'")
        if self.weights is not None and self.weights not in WEIGHTS:
            raise InputError(f"weights cannot be '{self.weights}'", hint=nearest(self.weights, WEIGHTS))
        if not (self.precision or self.range or self.weights or self.inputs or self.output):
            raise InputError(f"the scope {self} asks for nothing", hint="precision = 'float', or range = 'minmax'")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise InputError(f"unknown precision '{self.precision}'", hint=nearest(self.precision, PRECISIONS))

    @property
    def chosen(self) -> dict[str, str]:
        """The selector and its pattern."""
        return {k: v for k in SELECTORS if (v := getattr(self, k)) is not None}

    def __str__(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in self.chosen.items())
