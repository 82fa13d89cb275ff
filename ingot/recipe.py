"""What a user may ask for beyond the target. One frozen object; unknown keys are refused with the nearest name."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.errors import InputError, nearest

PRECISIONS = ("int8", "int16", "float")
WEIGHTS = ("int8", "int4")
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
    """How one tensor is stored: a fixed scale, or one from the measured range (scale None)."""

    dtype: str
    scale: float | None = None
    zero_point: int = 0
    qmin: int | None = None
    qmax: int | None = None

    def __post_init__(self) -> None:
        _check_types(self, {"dtype": str, "scale": (int, float), "zero_point": int, "qmin": int, "qmax": int})
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
    def is_cut(self) -> bool:
        """Fewer numbers than the type holds."""
        return (self.qmin, self.qmax) != LIMITS[self.dtype]


Specs = tuple[tuple[str | int, Spec | None], ...]  # by name or position

# Names that graphics people use: normalised integers that stand for -1 … 1 or 0 … 1.
NAMED = {
    "float": None,
    "int8": Spec("int8"),
    "int16": Spec("int16"),
    "snorm8": Spec("int8", 1 / 127, 0, -127, 127),
    "snorm16": Spec("int16", 1 / 32767, 0, -32767, 32767),
    "unorm8": Spec("uint8", 1 / 255, 0, 0, 255),
}


@dataclass(frozen=True)
class Scope:
    """A demand on some ops: those of an op, a module's type or path, or a value's name; `*` stands for any."""

    precision: str | None = None
    range: str | None = None
    op: str | None = None
    type: str | None = None
    path: str | None = None
    name: str | None = None
    weights: str | None = None
    # How the matched ops read their operands (by position) and give their result.
    inputs: Specs = ()
    output: Spec | None = None

    def __post_init__(self) -> None:
        _check_types(self, dict.fromkeys(("precision", "range", "op", "type", "path", "name", "weights"), str))
        object.__setattr__(self, "inputs", _specs("inputs", self.inputs))
        object.__setattr__(self, "output", _spec("output", self.output))
        if len(self.chosen) != 1:
            given = ", ".join(self.chosen) or "none"
            raise InputError("a scope is chosen by exactly one of op, type, path, name", why=f"given: {given}")
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
        return {k: v for k in ("op", "type", "path", "name") if (v := getattr(self, k)) is not None}

    def __str__(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in self.chosen.items())


@dataclass(frozen=True)
class Recipe:
    """Demands on precision, bars for verification, limits of the run; each field's default is what `cast` uses."""

    # How ranges come from histograms. auto tries several on some of the batches and takes the one with the least noise.
    range: str = "auto"
    # Biases take back what rounding and clipping move the mean of each channel by, as seen on some of the batches.
    correct_biases: bool = True
    # What halving the noise at the outputs is worth, as a share of the time of the whole program. None: 5 %, except
    # that a target that is bought for its cycles spends none of them on wider integers.
    halving_noise_is_worth: float | None = None
    # Decibels that narrower weights (int4, on targets that have them) may cost; the planner chooses where.
    narrow_weights_may_cost_db: float = 0.0
    # Demands on parts of the model; of two that meet at an op the one that names fewer things wins.
    scopes: tuple[Scope, ...] = ()
    # How the program takes its inputs and gives its outputs, by name or position; the others stay float.
    inputs: Specs = ()
    outputs: Specs = ()
    # Options of the target, by name; `ingot targets` lists them.
    options: tuple[tuple[str, Any], ...] = ()
    # Artefact against the float model: below 10 dB the error is a third of the signal.
    min_sqnr_db: float = 10.0
    # Artefact against its own quantized graph; below it the artefact must at least be as good as that graph is.
    min_faithful_db: float = 25.0
    # How many calibration batches are run again to verify.
    verify_batches: int = 8
    # Seconds before a run in the child process counts as hanging.
    run_timeout: float = 300.0
    # Rewriting rules that must not be used, by name.
    without_rules: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.verify_batches < 1:
            raise InputError("verify_batches must be at least 1", why="an artefact that was not run is not handed over")
        if self.halving_noise_is_worth is not None and not 0 <= self.halving_noise_is_worth < float("inf"):
            raise InputError("halving_noise_is_worth is a share of time: 0 or more, and finite")
        if not 0 <= self.narrow_weights_may_cost_db <= 40:
            raise InputError("narrow_weights_may_cost_db is 0 … 40")
        for name in ("scopes", "inputs", "outputs", "options"):  # so that python may give plain dicts and lists
            object.__setattr__(self, name, _typed(name, getattr(self, name)))
        check_method(self.range)


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


def recipe_from(value: Any) -> Recipe:
    """A Recipe from itself, None, a mapping, or a TOML file."""
    if value is None:
        return Recipe()
    if isinstance(value, Recipe):
        return value
    if isinstance(value, (str, Path)):
        return recipe_from(_read(Path(value)))
    if isinstance(value, Mapping):
        return _from_mapping(value)
    raise InputError(f"a recipe is a Recipe, a mapping or a TOML file, not {type(value).__name__}")


def _from_mapping(data: Mapping[str, Any]) -> Recipe:
    known = {f.name: f for f in dataclasses.fields(Recipe)}
    for name in data:
        if name not in known:
            raise InputError(f"unknown recipe key '{name}'", hint=nearest(name, known))
    return Recipe(**{k: _typed(k, v) for k, v in data.items()})


def _typed(name: str, value: Any) -> Any:
    special = {"scopes": _scopes, "inputs": _specs, "outputs": _specs, "options": _options}
    if name in special:
        return special[name](name, value)
    default = getattr(Recipe(), name)
    if default is None and value is not None:
        default = 0.0  # only a number may be left to the target
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise _wrong_type(name, type(default).__name__, value)
    return value


def _wrong_type(name: str, wanted: str, value: Any) -> InputError:
    return InputError(f"recipe key '{name}' must be a {wanted}, not {type(value).__name__}")


def _scopes(name: str, value: Any) -> tuple[Scope, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong_type(name, "list of tables", value)
    return tuple(v if isinstance(v, Scope) else _built(Scope, name, v) for v in value)


def _specs(name: str, value: Any) -> Specs:
    """A list is by position, a table by name."""
    if isinstance(value, Mapping):
        return tuple((k, _spec(name, v)) for k, v in value.items())
    if isinstance(value, tuple) and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        return tuple((k, _spec(name, v)) for k, v in value)  # in this form already
    if isinstance(value, (list, tuple)):
        return tuple((i, _spec(name, v)) for i, v in enumerate(value))
    raise _wrong_type(name, "list or table", value)


def _spec(name: str, value: Any) -> Spec | None:
    if value is None or isinstance(value, Spec):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            raise InputError(f"unknown way to store a tensor in '{name}': '{value}'", hint=nearest(value, NAMED))
        return NAMED[value]
    spec: Spec = _built(Spec, name, value)
    return spec


def _options(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(value, tuple) and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        return value  # in this form already
    if not isinstance(value, Mapping):
        raise _wrong_type(name, "table", value)
    return tuple(sorted(value.items()))


def _built(kind: Any, name: str, value: Any) -> Any:
    """One table of a recipe as its dataclass."""
    if not isinstance(value, Mapping):
        raise _wrong_type(name, "table", value)
    known = [f.name for f in dataclasses.fields(kind)]
    for entry in value:
        if entry not in known:
            raise InputError(f"unknown key '{entry}' in '{name}'", hint=nearest(entry, known))
    try:
        return kind(**value)
    except TypeError as e:
        raise InputError(f"an entry of '{name}' is not complete", why=str(e)) from e


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as e:
        raise InputError(f"cannot read the recipe {path}", why=str(e)) from e
    except tomllib.TOMLDecodeError as e:
        raise InputError(f"the recipe {path} is not TOML", why=str(e)) from e
