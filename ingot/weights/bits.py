"""Which weights get eight bits where four are the rule: those that gain most for their bytes, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ingot.errors import PlanError
from ingot.weights.rounding import Rounded
from ingot.weights.scheme import Layer


def noise(weight: Tensor, made: Rounded, moments: Tensor | None) -> float:
    """The share of what the layer gives that is error: mean square of (W - W') x over that of W x."""
    lost = made.real - weight
    if moments is None:
        return float(lost.square().sum() / weight.square().sum())
    return float((lost @ moments * lost).sum() / (weight @ moments * weight).sum())


def widened(layers: Sequence[Layer], noises: Mapping[str, float], most_bytes: int) -> tuple[Layer, ...]:
    """Linears of four bits with eight instead, the one with the most noise for its bytes first, while they fit."""
    chosen, left = {layer.name: layer for layer in layers}, most_bytes - sum(layer.bytes for layer in layers)
    if left < 0:
        why = f"with the fewest bits they take {most_bytes - left:,}"
        raise PlanError(
            f"the weights do not fit in {most_bytes:,} bytes", why=why, hint="embedding_bits=4, head_bits=4"
        )
    for layer in sorted(narrow(layers), key=lambda n: noises[n.name] / (_wide(n).bytes - n.bytes), reverse=True):
        if noises[layer.name] > 0 and (more := _wide(layer).bytes - layer.bytes) <= left:
            chosen[layer.name], left = _wide(layer), left - more
    return tuple(_like(layer, chosen[layer.same_as or layer.name]) for layer in layers)


def narrow(layers: Sequence[Layer]) -> list[Layer]:
    """Those that may get more bits."""
    return [layer for layer in layers if layer.kind == "linear" and layer.bits == 4 and not layer.same_as]


def _like(layer: Layer, first: Layer) -> Layer:
    """The same weight in the same form, wherever it is used."""
    return replace(layer, bits=first.bits, group=first.group)


def _wide(layer: Layer) -> Layer:
    return replace(layer, bits=8, group=layer.width)
