"""Which weights get eight bits where four are the rule: those that gain most for their bytes, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ingot.errors import PlanError
from ingot.weight_only.gptq import limits
from ingot.weight_only.scheme import Layer


def noise(rows: Tensor, layer: Layer, moments: Tensor | None) -> float:
    """The share of what these rows give that will be error: a step in each number, over the mean square of W x."""
    steps = rows.view(len(rows), -1, layer.group).abs().amax(-1) / limits(layer.bits)[1]
    loud = torch.ones(layer.width) if moments is None else moments.diagonal()
    lost = (steps.square() @ loud.view(-1, layer.group).sum(1)).sum() / 12
    whole = rows.square().sum() if moments is None else (rows @ moments * rows).sum()
    return float(lost / whole.clamp_min(1e-30))


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
