"""Parts of a recipe: how one tensor is stored, and demands on some ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot.errors import InputError, nearest

PRECISIONS = ("int8", "int16", "float")
WEIGHTS = ("int8", "int4")
CHOICES = ("op", "type", "path", "name", "feeds")
METHODS = ("auto", "minmax", "percentile", "mse", "entropy")
NUMBERS = {"percentile": (50.0, 100.0), "mse": (0.0, 1000.0)}  # that a method may be given


LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def _check_types(entry: Any, wanted: dict[str, Any]) -> None:
    for name, kind in wanted.items():
        value = getattr(entry, name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InputError(f"'{name}' cannot be {value!r}", why=f"in {type(entry).__name__.lower()} of the recipe")


@dataclass(frozen=True)
class Spec:
    """How one tensor is stored: a fixed scale, or one from the measured range (scale None); or as float."""

    dtype: str
    scale: float | None = None
    zero_point: int = 0
    qmin: int | None = None
    qmax: int | None = None

    def __post_init__(self) -> None:
        _check_types(self, {"dtype": str, "scale": (int, float), "zero_point": int, "qmin": int, "qmax": int})
        if self.is_float:
            if (self.scale, self.zero_point, self.qmin, self.qmax) != (None, 0, None, None):
                raise InputError("what stays float has no scale, zero point or range", why=str(self))
            return
        if self.dtype not in LIMITS:
            raise InputError(f"a tensor cannot be stored as '{self.dtype}'", hint=nearest(self.dtype, LIMITS))
        low, high = LIMITS[self.dtype]
        object.__setattr__(self, "qmin", low if self.qmin is None else self.qmin)
        object.__setattr__(self, "qmax", high if self.qmax is None else self.qmax)
        if not low <= self.qmin < self.qmax <= high:  # type: ignore[operator]
            raise InputError(f"{self.dtype} holds {low} … {high}, not {self.qmin} … {self.qmax}")
        if self.scale is not None and not (0 < self.scale < float("inf") and self.qmin <= self.zero_point <= self.qmax):  # type: ignore[operator]
            raise InputError("a scale is positive, and a zero point lies in the range", why=str(self))

    @property
    def is_float(self) -> bool:
        return self.dtype == "float"

    @property
    def is_cut(self) -> bool:
        """Fewer numbers than the type holds."""
        return (self.qmin, self.qmax) != LIMITS[self.dtype]


Specs = tuple[tuple[str | int, Spec | None], ...]  # by name or position

# Names that graphics people use: normalised integers that stand for -1 … 1 or 0 … 1.
NAMED = {
    "float": Spec("float"),
    "int8": Spec("int8"),
    "int16": Spec("int16"),
    "snorm8": Spec("int8", 1 / 127, 0, -127, 127),
    "snorm16": Spec("int16", 1 / 32767, 0, -32767, 32767),
    "unorm8": Spec("uint8", 1 / 255, 0, 0, 255),
}


@dataclass(frozen=True)
class Scope:
    """A demand on some ops: of one kind, of a module's type or path, by a value's name, or by what alone they feed.

    `*` stands for any.
    """

    precision: str | None = None
    range: str | None = None
    op: str | None = None
    type: str | None = None
    path: str | None = None
    name: str | None = None
    feeds: str | None = None  # "grid_sampler*:1": what reaches nothing but operand 1 of those ops
    weights: str | None = None
    # How the matched ops read their operands (by position) and give their result.
    inputs: Specs = ()
    output: Spec | None = None

    def __post_init__(self) -> None:
        _check_types(self, dict.fromkeys(("precision", "range", *CHOICES, "weights"), str))
        object.__setattr__(self, "inputs", specs_from("inputs", self.inputs))
        object.__setattr__(self, "output", _spec("output", self.output))
        if len(self.chosen) != 1:
            given = ", ".join(self.chosen) or "none"
            raise InputError(f"a scope is chosen by exactly one of {', '.join(CHOICES)}", why=f"given: {given}")
        if self.feeds is not None and not self.feeds.rpartition(":")[2].isdecimal():
            raise InputError(f"'{self.feeds}' names no operand of an op", hint="feeds = 'grid_sampler*:1'")
        if self.weights is not None and self.weights not in WEIGHTS:
            raise InputError(f"weights cannot be '{self.weights}'", hint=nearest(self.weights, WEIGHTS))
        if not (self.precision or self.range or self.weights or self.inputs or self.output):
            raise InputError(f"the scope {self} asks for nothing", hint="precision = 'float', or range = 'minmax'")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise InputError(f"unknown precision '{self.precision}'", hint=nearest(self.precision, PRECISIONS))
        if self.range is not None:
            check_method(self.range)

    @property
    def chosen(self) -> dict[str, str]:
        return {k: v for k in CHOICES if (v := getattr(self, k)) is not None}

    def __str__(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in self.chosen.items())


def check_method(text: str) -> None:
    """A method by name; some take a number: `percentile:99.9`, `mse:4` (a clipped number counts four times)."""
    name, _, number = text.partition(":")
    if name not in METHODS or (number and name not in NUMBERS):
        raise InputError(f"unknown range method '{text}'", hint=nearest(name, METHODS))
    low, high = NUMBERS.get(name, (0.0, 0.0))
    try:
        good = not number or low < float(number) <= high
    except ValueError:
        good = False
    if not good:
        raise InputError(f"'{text}' is no {name}", hint=f"{name}:x with x over {low:g} and up to {high:g}")


def wrong_type(name: str, wanted: str, value: Any) -> InputError:
    return InputError(f"recipe key '{name}' must be a {wanted}, not {type(value).__name__}")


def specs_from(name: str, value: Any) -> Specs:
    """A list is by position, a table by name."""
    if isinstance(value, Mapping):
        return tuple((k, _spec(name, v)) for k, v in value.items())
    if isinstance(value, tuple) and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        return tuple((k, _spec(name, v)) for k, v in value)  # in this form already
    if isinstance(value, (list, tuple)):
        return tuple((i, _spec(name, v)) for i, v in enumerate(value))
    raise wrong_type(name, "list or table", value)


def _spec(name: str, value: Any) -> Spec | None:
    if value is None or isinstance(value, Spec):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            raise InputError(f"unknown way to store a tensor in '{name}': '{value}'", hint=nearest(value, NAMED))
        return NAMED[value]
    spec: Spec = built(Spec, name, value)
    return spec


def built(kind: Any, name: str, value: Any) -> Any:
    """One table of a recipe as its dataclass."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, "table", value)
    known = [f.name for f in dataclasses.fields(kind)]
    for entry in value:
        if entry not in known:
            raise InputError(f"unknown key '{entry}' in '{name}'", hint=nearest(entry, known))
    try:
        return kind(**value)
    except TypeError as e:
        raise InputError(f"an entry of '{name}' is not complete", why=str(e)) from e
