"""The `weights` option of a cast: parsed, validated, and resolved for a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ingot.config.recipe import Recipe
from ingot.errors import InputError, PlanError, nearest
from ingot.targets.base import Target
from ingot.weight_only.scheme import GROUP_MULTIPLE, SCHEMES, Scheme

ROUNDING_METHODS = ("auto", "minmax", "nearest", "hqq", "gptq")


@dataclass(frozen=True)
class Weights:
    """A scheme and its settings; method `auto` is GPTQ where there is calibration data, else round to nearest."""

    scheme: str
    group: int = GROUP_MULTIPLE
    method: str = "auto"
    embedding_bits: int | None = None  # None: the most that the target supports
    head_bits: int | None = None
    rotate: bool = True  # rotate the residual stream of a decoder, where it has one: no runtime cost, less noise
    most_bytes: int | None = None  # budget of all weights; bytes beyond the minimum buy int8 where it helps most
    int8_budget: float | None = None  # instead of most_bytes: those bytes as a fraction of the minimum

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(f"unknown weight scheme '{self.scheme}'", hint=nearest(str(self.scheme), SCHEMES))
        if self.method not in ROUNDING_METHODS:
            hint = nearest(str(self.method), ROUNDING_METHODS)
            raise InputError(f"unknown rounding method '{self.method}'", hint=hint)
        if self.group < GROUP_MULTIPLE or self.group % GROUP_MULTIPLE:
            why = f"kernels need a multiple of {GROUP_MULTIPLE}"
            raise InputError(f"invalid group size {self.group}", why=why, hint=f"group={GROUP_MULTIPLE}")
        if self.most_bytes is not None and (not isinstance(self.most_bytes, int) or self.most_bytes <= 0):
            raise InputError(f"most_bytes must be a positive integer, not {self.most_bytes!r}")
        if self.int8_budget is not None:
            self._check_int8_budget()
        if not isinstance(self.rotate, bool):
            raise InputError(f"rotate must be yes or no, not {self.rotate!r}")
        if {self.embedding_bits, self.head_bits} - {4, 8, None}:
            raise InputError("embedding_bits and head_bits must be 4 or 8")

    def _check_int8_budget(self) -> None:
        if not isinstance(self.int8_budget, (int, float)) or not 0 <= self.int8_budget <= 1:
            why = f"it is a fraction of the fewest bytes, not {self.int8_budget!r}"
            raise InputError("int8_budget must be between 0 and 1", why=why, hint="int8_budget=0.02")
        if self.most_bytes is not None:
            raise InputError("most_bytes and int8_budget are two forms of one budget", hint="give one of them")

    @property
    def uses_calibration(self) -> bool:
        """The method reads calibration statistics where there are some."""
        return self.method in ("auto", "gptq")

    @property
    def spec(self) -> Scheme:
        return SCHEMES[self.scheme]


def weights_from(value: Any) -> Weights:
    """From a `Weights`, a mapping, or text such as `8da4w,group=64,rotate=no`."""
    if isinstance(value, Weights):
        return value
    if isinstance(value, str):
        scheme, *more = (part.strip() for part in value.split(","))
        value = {"scheme": scheme, **dict(_setting(part) for part in more)}
    if isinstance(value, Mapping):
        try:
            return Weights(**value)
        except TypeError as e:
            raise InputError("invalid `weights` option", why=str(e), hint="weights='8da4w'") from e
    raise InputError(f"weights must be the name of a scheme, not {type(value).__name__}", hint="weights='8da4w'")


def _setting(part: str) -> tuple[str, int | float | str | bool]:
    """`group=64` or `rotate=no`, as written on the command line."""
    name, _, value = (p.strip() for p in part.partition("="))
    if value.replace(".", "", 1).isdecimal():
        return name, float(value) if "." in value else int(value)
    return name, {"yes": True, "no": False}.get(value, value)


def refuse_activation_settings(recipe: Recipe) -> None:
    """A weight scheme keeps activations, inputs and outputs float: recipe settings for them would have no effect."""
    asked = [k for k in ("scopes", "inputs", "outputs", "channels_last") if getattr(recipe, k)]
    if asked or not recipe.quantize:
        why = f"the recipe sets {', '.join(asked) or 'quantize = false'}, and a weight scheme quantizes weights only"
        raise InputError("a weight scheme does not combine with this recipe", why=why, hint="remove one of the two")


def resolve_for_target(weights: Weights, target: Target) -> Weights:
    """Refuse what the target does not support; fill in the bits of embeddings and heads."""
    _refuse_unsupported_scheme(weights, target)
    asked, supported = {weights.embedding_bits, weights.head_bits} - {None}, target.weight_only.bits
    widest = max(supported)
    budget = weights.most_bytes is not None or bool(weights.int8_budget)
    if not asked <= set(supported) or (budget and widest == weights.spec.bits):
        why = target.lowering.hints.get("weights:8w") or f"it supports {' or '.join(map(str, supported))} bits"
        what = f"{target.name} does not support weights of this many bits"
        raise PlanError(what, why=why, hint=f"{min(supported)} bits")
    return replace(weights, embedding_bits=weights.embedding_bits or widest, head_bits=weights.head_bits or widest)


def _refuse_unsupported_scheme(weights: Weights, target: Target) -> None:
    if weights.scheme in target.weight_only.schemes:
        return
    hint = target.lowering.hints.get(f"weights:{weights.scheme}")
    why = hint or f"no artefact with it was verified on {target.name}"
    supported = ", ".join(target.weight_only.schemes) or "none; target='xnnpack' supports some"
    raise PlanError(f"{target.name} does not support {weights.scheme} weights", why=why, hint=f"supported: {supported}")
