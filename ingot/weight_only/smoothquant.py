"""SmoothQuant (Xiao et al. 2022): linear(x, w) -> linear(x / s, w * s), to move outliers from activations to weights

Activations are quantized per token, so one outlier channel makes the step of all channels coarse. Weights have a scale
per row, and absorb s. It is applied where the expected noise of both roundings falls. Where x is a product, the linear
that gives one factor divides by s; else the gain of a norm does, or a new multiplication.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, value_of
from ingot.core.host_memory import ROWS_PER_CHUNK
from ingot.errors import PlanError
from ingot.plan.smoothing_factors import MAX_NOISE_RATIO, balanced_factors, rounding_noise
from ingot.weight_only.hessian import InputStatistics
from ingot.weight_only.insert_qdq import is_dequantized
from ingot.weight_only.residual_stream import norm_gain_of
from ingot.weight_only.scheme import WeightLayer, has_constant_bias, weight_of
from ingot.weight_only.weight_transforms import NO_TRANSFORM, WeightTransform

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Smoothing:
    """Linears that read x / scales, by name; and the linear whose output rows are divided, where there is one."""

    readers: tuple[str, ...]
    scales: Tensor
    producer: str | None

    def apply_to(self, module: GraphModule) -> dict[Node, Tensor | None]:
        """Insert the division. Returns the values that differ from the original."""
        wanted = {*self.readers, self.producer}
        nodes = {n.name: n for n in module.graph.nodes if n.name in wanted}
        readers = [nodes[n] for n in self.readers]
        x: Any = readers[0].args[0]
        if len({n.args[0] for n in readers}) > 1 or (self.producer and not _divides(nodes[self.producer], x, readers)):
            why = f"{readers[0].name} reads another value in one of them"
            raise PlanError("the methods of this model differ", why=why, hint="method=nearest")
        if self.producer is not None:
            return dict.fromkeys((nodes[self.producer], x), self.scales)
        _insert_division(module, readers, self.scales)
        return {}


def find_smoothing(
    module: GraphModule,
    layers: Sequence[WeightLayer],
    statistics: Mapping[str, InputStatistics],
    transforms: Mapping[str, WeightTransform],
    prequantized: Collection[str],
) -> list[Smoothing]:
    """For int8 linears where it pays; readers of a rotated stream have no outliers."""
    unrotated = {n.name for n in layers if n.bits == 8 and transforms.get(n.name, NO_TRANSFORM).input_rotation is None}
    linears, found = {n.name for n in layers} - {*prequantized}, list[Smoothing]()
    for x, readers in _readers(module, unrotated & {*statistics} - {*prequantized}).items():
        weights = [transforms.get(n.name, NO_TRANSFORM).weight(weight_of(n)) for n in readers]
        scales = _smoothing_scales(weights, statistics[readers[0].name])
        if scales is not None:
            found.append(Smoothing(tuple(n.name for n in readers), scales, _producer(x, readers, linears)))
    return found


def add_smoothing(
    transforms: Mapping[str, WeightTransform], smoothing: Sequence[Smoothing]
) -> dict[str, WeightTransform]:
    made = dict(transforms)
    for s in smoothing:
        made |= {n: replace(made.get(n, NO_TRANSFORM), input_scales=s.scales) for n in s.readers}
        if s.producer is not None:
            made[s.producer] = replace(made.get(s.producer, NO_TRANSFORM), output_scales=1 / s.scales)
    return made


def _readers(module: GraphModule, wanted: Collection[str]) -> dict[Node, list[Node]]:
    found = dict[Node, list[Node]]()
    for node in module.graph.nodes:
        if node.name in wanted and not is_dequantized(node.args[0]):
            found.setdefault(node.args[0], []).append(node)
    return found


def _producer(x: Node, readers: Sequence[Node], linears: Collection[str]) -> str | None:
    """A linear that gives one factor of x and has no other reader."""
    factors = [n for n in x.all_input_nodes if n.name in linears and n.target is aten.linear.default]
    return next((n.name for n in factors if _divides(n, x, readers)), None)


def _divides(linear: Node, x: Node, readers: Sequence[Node]) -> bool:
    """Dividing the output of this linear divides the input of the readers, and nothing else."""
    product = x.target is aten.mul.Tensor and set(x.users) <= set(readers) and x.args[0] is not x.args[1]
    wide = value_of(linear).shape[-1] == value_of(x).shape[-1]
    return product and wide and set(linear.users) == {x} and has_constant_bias(linear)


def _smoothing_scales(weights: list[Tensor], statistics: InputStatistics) -> Tensor | None:
    """None where they remove little noise."""
    weight_peak = torch.stack([w.abs().amax(0) for w in _row_blocks(weights)]).amax(0)
    s = balanced_factors(statistics.peak, weight_peak)
    without = _expected_noise(weights, statistics, torch.ones_like(s))
    return s if _expected_noise(weights, statistics, s) < MAX_NOISE_RATIO * without else None


def _row_blocks(weights: list[Tensor]) -> Iterator[Tensor]:
    """Some rows at a time: a head is the largest weight, and temporaries of its size would set the peak memory."""
    return (rows for w in weights for rows in w.split(ROWS_PER_CHUNK))


def _expected_noise(weights: list[Tensor], statistics: InputStatistics, s: Tensor) -> float:
    """Noise power of rounding activations (a step per token) plus weights (a step per row), up to a constant."""
    token_step = float((statistics.peak / s).amax()) * 2 / 255
    input_power = (statistics.hessian.diagonal() / s**2)[None]
    return sum(rounding_noise(block * s, token_step, input_power, 127) for block in _row_blocks(weights))


def _insert_division(module: GraphModule, readers: list[Node], s: Tensor) -> None:
    """x / s; folded into the gain of a norm where only the readers use it."""
    first, x = readers[0], readers[0].args[0]
    normalized, gain = norm_gain_of(x)
    foldable = gain is not None and set(x.users) <= set(readers)  # type: ignore[union-attr]
    kept, factor = (normalized, gain / s) if foldable and gain is not None else (x, 1 / s)
    smoothed = call(first, aten.mul.Tensor, kept, add_constant(module, factor, f"{x}_even", first))
    for node in readers:
        node.update_arg(0, smoothed)
