"""What a user asks for, and what a target was seen to do right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ingot.config.recipe import Recipe
from ingot.errors import InputError, PlanError, nearest
from ingot.targets.base import Target
from ingot.weight_only.scheme import SCHEMES, UNIT, Scheme

METHODS = ("auto", "minmax", "nearest", "hqq", "gptq")


@dataclass(frozen=True)
class Weights:
    """A scheme, and how it is carried out; `auto` rounds with calibration data in mind where there is some."""

    scheme: str
    group: int = UNIT
    method: str = "auto"
    embedding_bits: int | None = None  # None: the most that the target takes
    head_bits: int | None = None
    rotate: bool = True  # the stream of a decoder by an orthogonal matrix, where it has one: no cost, less noise
    most_bytes: int | None = None  # of all weights: what is left of it gives eight bits to those that gain most

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(f"unknown weight scheme '{self.scheme}'", hint=nearest(str(self.scheme), SCHEMES))
        if self.method not in METHODS:
            raise InputError(f"unknown way to round weights '{self.method}'", hint=nearest(str(self.method), METHODS))
        if self.group < UNIT or self.group % UNIT:
            raise InputError(f"a group of {self.group} weights", why=f"kernels take multiples of {UNIT}")
        if self.most_bytes is not None and (not isinstance(self.most_bytes, int) or self.most_bytes <= 0):
            raise InputError(f"weights cannot take {self.most_bytes!r} bytes")
        if not isinstance(self.rotate, bool):
            raise InputError(f"rotate is yes or no, not {self.rotate!r}")
        if {self.embedding_bits, self.head_bits} - {4, 8, None}:
            raise InputError("embeddings and heads have 4 or 8 bits")

    @property
    def by_data(self) -> bool:
        """Rounded with what each layer reads in mind, where that is known."""
        return self.method in ("auto", "gptq")

    @property
    def how(self) -> Scheme:
        return SCHEMES[self.scheme]


def weights_from(value: Any) -> Weights:
    if isinstance(value, Weights):
        return value
    if isinstance(value, str):
        scheme, *more = (part.strip() for part in value.split(","))
        value = {"scheme": scheme, **dict(_named(part) for part in more)}
    if isinstance(value, Mapping):
        try:
            return Weights(**value)
        except TypeError as e:
            raise InputError("these weights cannot be", why=str(e), hint="weights='8da4w'") from e
    raise InputError(f"weights is a scheme by name, not {type(value).__name__}", hint="weights='8da4w'")


def _named(part: str) -> tuple[str, int | str | bool]:
    """`group=64` or `rotate=no`, as a shell has it."""
    name, _, value = (p.strip() for p in part.partition("="))
    return name, int(value) if value.isdigit() else {"yes": True, "no": False}.get(value, value)


def refuse_storage(recipe: Recipe) -> None:
    """A scheme leaves activations, inputs and outputs float: what a recipe says of them would be passed over."""
    asked = [k for k in ("scopes", "inputs", "outputs", "channels_last") if getattr(recipe, k)]
    if asked or not recipe.quantize:
        why = f"the recipe has {', '.join(asked) or 'quantize = false'}, and only weights are quantized here"
        raise InputError("a weight scheme and this recipe do not go together", why=why, hint="leave one of them out")


def settled(weights: Weights, target: Target) -> Weights:
    """With bits that the target takes; only what was seen to be right is offered."""
    refuse_unseen(weights, target)
    asked, can = {weights.embedding_bits, weights.head_bits} - {None}, target.weight_only.bits
    wide = max(can)
    if not asked <= set(can) or (weights.most_bytes is not None and wide == weights.how.bits):
        why = target.lowering.hints.get("weights:8w") or f"weights of it have {' or '.join(map(str, can))} bits"
        raise PlanError(f"{target.name} does not take weights of so many bits", why=why, hint=f"{min(can)} bits")
    return replace(weights, embedding_bits=weights.embedding_bits or wide, head_bits=weights.head_bits or wide)


def refuse_unseen(weights: Weights, target: Target) -> None:
    if weights.scheme in target.weight_only.schemes:
        return
    why = (
        target.lowering.hints.get(f"weights:{weights.scheme}")
        or f"no artefact of it was seen to be right on {target.name}"
    )
    offered = ", ".join(target.weight_only.schemes) or "none here; target='xnnpack' has some"
    raise PlanError(f"{target.name} does not take {weights.scheme} weights", why=why, hint=f"offered: {offered}")
