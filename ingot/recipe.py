"""What a user may ask for beyond the target. One frozen object; unknown keys are refused with the nearest name."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.errors import InputError, nearest


@dataclass(frozen=True)
class Recipe:
    """Bars for verification and the limits of the run; each field's default is what `cast` uses."""

    # Artefact against the float model: below 10 dB the error is a third of the signal.
    min_sqnr_db: float = 10.0
    # Artefact against its own quantized graph; below it the artefact must at least be as good as that graph is.
    min_faithful_db: float = 25.0
    # How many calibration batches are run again to verify.
    verify_batches: int = 8
    # Seconds before a run in the child process counts as hanging.
    run_timeout: float = 300.0
    # Rewriting rules that must not be used, by name.
    without_rules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verify_batches < 1:
            raise InputError("verify_batches must be at least 1", why="an artefact that was not run is not handed over")


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
    for key in data:
        if key not in known:
            raise InputError(f"unknown recipe key '{key}'", hint=nearest(key, known))
    return Recipe(**{k: _typed(k, v) for k, v in data.items()})


def _typed(key: str, value: Any) -> Any:
    default = getattr(Recipe(), key)
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise InputError(f"recipe key '{key}' must be a {type(default).__name__}, not {type(value).__name__}")
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as e:
        raise InputError(f"cannot read the recipe {path}", why=str(e)) from e
    except tomllib.TOMLDecodeError as e:
        raise InputError(f"the recipe {path} is not TOML", why=str(e)) from e
