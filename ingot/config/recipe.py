"""What a user may ask for beyond the target. One frozen object; unknown keys are refused with the nearest name."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.config.scopes import Scope, Specs, built, check_method, specs_from, wrong_type
from ingot.errors import InputError, nearest


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
    # False: the program takes and gives those as float, and converts them itself, outside of every delegate.
    integer_io: bool = True
    # Images among the inputs and outputs that lie in memory as N, H, W, C, by name; "*": all that have four dimensions.
    channels_last: tuple[str, ...] = ()
    # Inputs are read where the caller has them; else each call copies them into memory of the program's own.
    lend_inputs: bool = False
    # Other backends that take the ops they own, by name (sampler, or your own).
    beside: tuple[str, ...] = ()
    # False: everything stays float, and nothing is measured.
    quantize: bool = True
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
        if not self.quantize and (self.scopes or self.inputs or self.outputs):
            why = "scopes, inputs and outputs say how numbers are stored"
            raise InputError("quantize = false leaves nothing to store", why=why, hint="leave one of them out")

    @property
    def remembered(self) -> dict[str, Any]:
        """What a plan cannot be lowered without, as plain data."""
        lists = {"beside": list(self.beside), "without_rules": list(self.without_rules)}
        rest = {"options": dict(self.options), "lend_inputs": self.lend_inputs}
        return {k: v for k, v in {**rest, **lists}.items() if v}


def recipe_from(value: Any) -> Recipe:
    """A Recipe from itself, None, a mapping, or a TOML file."""
    if value is None:
        return Recipe()
    if isinstance(value, Recipe):
        return value
    if isinstance(value, (str, Path)):
        return recipe_from(read(Path(value)))
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
    special = {"scopes": _scopes, "inputs": specs_from, "outputs": specs_from, "options": _options}
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
        raise wrong_type(name, type(default).__name__, value)
    return value


def _scopes(name: str, value: Any) -> tuple[Scope, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise wrong_type(name, "list of tables", value)
    return tuple(v if isinstance(v, Scope) else built(Scope, name, v) for v in value)


def _options(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(value, tuple) and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        return value  # in this form already
    if not isinstance(value, Mapping):
        raise wrong_type(name, "table", value)
    if odd := [k for k, v in value.items() if not isinstance(v, (str, int, float, bool))]:
        raise InputError(f"option '{odd[0]}' cannot be a {type(value[odd[0]]).__name__}", hint="a string or a number")
    return tuple(sorted(value.items()))


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as e:
        raise InputError(f"cannot read the recipe {path}", why=str(e)) from e
    except tomllib.TOMLDecodeError as e:
        raise InputError(f"the recipe {path} is not TOML", why=str(e)) from e
