"""What a user may ask for beside the target: one frozen object, the same in Python, in a dict and in TOML."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from ingot.config.scopes import RangeMethod, Scope
from ingot.config.tensor_specs import Specs
from ingot.config.validation import checked, fields_of
from ingot.errors import InputError, first_sentence

# Keys of version 0.9 and what they are called now; read for one version.
RENAMED = {
    "halving_noise_is_worth": "noise_vs_latency",
    "narrow_weights_may_cost_db": "int4_sqnr_budget_db",
    "beside": "extra_backends",
    "without_rules": "disabled_rewrites",
    "lend_inputs": "caller_owned_inputs",
}

ASKED_FOR = "the recipe keeps it on the host"  # the reason of a host op that a recipe names without one


def _scopes(value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"'scopes' must be a list of tables, not a {type(value).__name__}")
    return tuple(v if isinstance(v, Scope) else fields_of(Scope, _table(v), "a scope") for v in value)


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(
            f"a scope is a table, not a {type(value).__name__}", hint="{ op = 'add', precision = 'float' }"
        )
    return value


def _options(value: Any) -> Any:
    if isinstance(value, (tuple, list)) and all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
        return tuple((str(k), v) for k, v in value)  # in this form already
    if not isinstance(value, Mapping):
        raise InputError(f"'options' must be a table, not a {type(value).__name__}")
    if odd := [k for k, v in value.items() if not isinstance(v, (str, int, float, bool))]:
        raise InputError(f"option '{odd[0]}' cannot be a {type(value[odd[0]]).__name__}", hint="a string or a number")
    return tuple(sorted(value.items()))


def _host_ops(value: Any) -> Any:
    """A list of names, or a table from names to reasons; as pairs."""
    if isinstance(value, Mapping):
        return tuple((str(k), str(v)) for k, v in value.items())
    if isinstance(value, (tuple, list)):
        return tuple((v, ASKED_FOR) if isinstance(v, str) else tuple(v) for v in value)
    return value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Prefer = Literal["time", "bytes", "energy"]
Names = Annotated[tuple[str, ...], BeforeValidator(_tuple)]
Scopes = Annotated[tuple[Scope, ...], BeforeValidator(_scopes)]
HostOps = Annotated[
    tuple[tuple[str, str], ...], BeforeValidator(_host_ops), WithJsonSchema({"type": ["array", "object"]})
]
Options = Annotated[tuple[tuple[str, Any], ...], BeforeValidator(_options), WithJsonSchema({"type": "object"})]


@checked("the recipe")
class Recipe:
    """Demands on precision, thresholds of the check, limits of the run; defaults are what `cast` uses."""

    range: RangeMethod = "auto"
    """How ranges come from histograms. auto: several estimators are tried on some batches; least noise wins."""
    correct_biases: bool = True
    """Bias correction: biases compensate the mean error of each channel, as measured on some batches."""
    equalize_channels: bool = True
    """Cross-layer equalization and SmoothQuant: weights and norms take up factors that make channels more alike, where
    that is seen to help."""
    smooth_inputs: bool = True
    """SmoothQuant with a product of its own before a weight, where no constant can take up the factors."""
    round_weights: Literal["auto", "nearest", "gptq"] = "auto"
    """gptq: weights are rounded by the error of their products, with scales that clip, where that is seen to help.
    auto: those narrower than 8 bits."""
    dynamic_activations: bool = True
    """Ops may quantize their input at run time, token by token, where the target has such kernels."""
    noise_vs_latency: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    """Share of the program's latency that halving the output noise may cost. None: 5 %, except that a target that is
    bought for its cycles spends none of them on wider integers."""
    prefer: Prefer = "time"
    """What the plan saves: estimated time (with some weight on the size of the file), bytes of the file, or energy."""
    float_on_host: bool = False
    """On a target without float kernels: ops that can run on integers may run in float on the host, where that is worth
    a delegate boundary. A plan that would fail the check otherwise has it without being asked."""
    int4_sqnr_budget_db: Annotated[float, Field(ge=0, le=40)] = 0.0
    """SQNR in dB that int4 weights may cost (on targets that have them); the planner chooses which weights."""
    scopes: Scopes = ()
    """Demands on parts of the model; where two select one op, the one that selects fewer ops wins."""
    inputs: Specs = ()
    """How the program takes its inputs and gives its outputs, by name or position; the others stay float."""
    outputs: Specs = ()
    integer_io: bool = True
    """False: these are float at the boundary, and the program quantizes and dequantizes them outside of every
    delegate."""
    channels_last: Names = ()
    """Image inputs and outputs in channels-last memory format (NHWC), by name; "*": all with four dimensions."""
    caller_owned_inputs: bool = False
    """Inputs stay in the caller's memory; else each call copies them into the program's planned memory."""
    extra_backends: Names = ()
    """Backends that take the ops they own, by name (sampler, or your own)."""
    quantize: bool = True
    """False: everything stays float, nothing is calibrated."""
    options: Options = ()
    """Options of the target, by name; `ingot targets` lists them."""
    min_sqnr_db: float = 10.0
    """Threshold of the artefact against the float model: at 10 dB the error is a third of the signal."""
    min_faithful_db: float = 25.0
    """Localization: an op whose SQNR to its quantized graph is below this is wrong. The check needs no threshold."""
    verify_batches: Annotated[int | None, Field(ge=1)] = None
    """Without validation data: how many batches are verified on, at most. None: a quarter of 16 or more calibration
    batches (64 at most), which are then not recorded; of fewer the first 8, which are."""
    run_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after which a run in the worker process counts as hanging."""
    disabled_rewrites: Names = ()
    """Rewrite rules that must not be used, by name."""
    host_ops: HostOps = ()
    """Ops that no backend may run, by name; or a table from names to reasons. They run on the host."""
    recover: bool = True
    """An op on which a backend fails, or whose kernel is wrong, runs elsewhere, and a note says so. False: an error."""
    localize_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """Seconds to search for the op on which a backend fails, or at which an error starts."""

    def __post_init__(self) -> None:
        if not self.quantize and (self.scopes or self.inputs or self.outputs):
            why = "scopes, inputs and outputs say how numbers are quantized"
            raise InputError(
                "quantize = false contradicts the rest of the recipe", why=why, hint="leave one of them out"
            )

    @property
    def remembered(self) -> dict[str, Any]:
        """What a plan cannot be lowered without, as plain data."""
        host_ops = {"host_ops": dict(self.host_ops)}
        lists = {"extra_backends": list(self.extra_backends), "disabled_rewrites": list(self.disabled_rewrites)}
        rest = {"options": dict(self.options), "caller_owned_inputs": self.caller_owned_inputs}
        return {k: v for k, v in {**rest, **lists, **host_ops}.items() if v}


RecipeLike = Recipe | Mapping[str, object] | str | os.PathLike[str] | None


def recipe_from(value: RecipeLike) -> Recipe:
    """A Recipe from itself, None, a mapping, or a TOML file."""
    if value is None:
        return Recipe()
    if isinstance(value, Recipe):
        return value
    if isinstance(value, (str, os.PathLike)):
        return recipe_from(read_toml(Path(value)))
    if isinstance(value, Mapping):
        return fields_of(Recipe, _renamed(value), "the recipe")
    raise InputError(f"a recipe is a Recipe, a mapping or a TOML file, not {type(value).__name__}")


def _renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of version 0.9 under their new names."""
    for old in RENAMED.keys() & data.keys():
        warnings.warn(f"recipe key '{old}' is now '{RENAMED[old]}'", FutureWarning, stacklevel=4)
    return {RENAMED.get(k, k): v for k, v in data.items()}


def read_toml(path: Path, what: str = "the recipe") -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as e:
        raise InputError(f"cannot read {what} {path}", why=str(e)) from e
    except (ValueError, RecursionError) as e:  # no TOML, no UTF-8, or nested too deeply
        raise InputError(f"{what} {path} is not TOML", why=first_sentence(e)) from e
