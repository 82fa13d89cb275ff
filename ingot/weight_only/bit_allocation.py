"""Mixed bit allocation: int8 instead of int4 for the linears where it removes most noise per byte, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ingot.errors import PlanError
from ingot.weight_only.rounded_weight import code_range
from ingot.weight_only.scheme import WeightLayer


def expected_noise_ratio(rows: Tensor, layer: WeightLayer, hessian: Tensor | None) -> float:
    """Expected noise power over the power of W x, for some rows of W: step² / 12 per weight, with min-max scales."""
    steps = rows.view(len(rows), -1, layer.group).abs().amax(-1) / code_range(layer.bits)[1]
    input_power = torch.ones(layer.width) if hessian is None else hessian.diagonal()
    noise = (steps.square() @ input_power.view(-1, layer.group).sum(1)).sum() / 12
    signal = rows.square().sum() if hessian is None else (rows @ hessian * rows).sum()
    return float(noise / signal.clamp_min(1e-30))


def allocate_bits(
    layers: Sequence[WeightLayer], noise_ratios: Mapping[str, float], most_bytes: int
) -> tuple[WeightLayer, ...]:
    """Greedy: int4 linears become int8 in the order of noise per additional byte, while the budget lasts."""
    chosen, left = {layer.name: layer for layer in layers}, most_bytes - sum(layer.bytes for layer in layers)
    if left < 0:
        why = f"with the fewest bits they take {most_bytes - left:,}"
        raise PlanError(
            f"the weights do not fit in {most_bytes:,} bytes", why=why, hint="embedding_bits=4, head_bits=4"
        )
    by_benefit = sorted(
        int4_linears(layers), key=lambda n: noise_ratios[n.name] / (_as_int8(n).bytes - n.bytes), reverse=True
    )
    for layer in by_benefit:
        if noise_ratios[layer.name] > 0 and (more := _as_int8(layer).bytes - layer.bytes) <= left:
            chosen[layer.name], left = _as_int8(layer), left - more
    return tuple(_in_form_of(chosen[layer.same_as or layer.name], layer) for layer in layers)


def int4_linears(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    """The layers that may become int8; a shared weight counts once."""
    return [layer for layer in layers if layer.kind == "linear" and layer.bits == 4 and not layer.same_as]


def _in_form_of(first: WeightLayer, layer: WeightLayer) -> WeightLayer:
    """A shared weight has one form in all its layers."""
    return replace(layer, bits=first.bits, group=first.group)


def _as_int8(layer: WeightLayer) -> WeightLayer:
    return replace(layer, bits=8, group=layer.width)
