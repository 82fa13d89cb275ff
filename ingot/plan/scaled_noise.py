"""The noise of a quantized program as a function of factors on its channels: of stored values, and of products.

A stored value has one step for all channels: with factors, the largest channel sets it. A weight has a step for each
row. Rows and values count by their sensitivity, the channels of a value by the weights that read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.calibrate.channel_statistics import ChannelStatistics
from ingot.calibrate.sensitivity import operand_key
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import groups_of, weight_axis
from ingot.core.fx import calls, constant_of, value_name, value_of
from ingot.plan.cost_model import TOKEN_NOISE
from ingot.plan.plan_data import Plan, QParams
from ingot.plan.smoothing_factors import rounding_noise
from ingot.rewrite.channel_factors import writes_channels
from ingot.rewrite.scalable_channels import by_column, channel_axis, output_width, tied_constants

Statistics = Mapping[Node, ChannelStatistics]
Sensitivity = Mapping[str, float | tuple[float, ...]]  # by value name or operand key


def shrunk_peak(statistics: ChannelStatistics, factors: Tensor) -> float:
    """The largest magnitude with factors, relative to that without."""
    return float((statistics.peak / factors).amax() / statistics.peak.amax().clamp_min(1e-12))


@dataclass(frozen=True, eq=False)
class StoredValue:
    """A value that is rounded as a whole."""

    node: Node
    channels: Tensor  # along its axis of channels
    statistics: ChannelStatistics
    step: float
    sensitivity: float
    importance: Tensor | None = None  # of each channel, 1 on average

    def noise(self, factors: Tensor) -> float:
        s = factors[self.channels].float()
        squares = s.square() if self.importance is None else s.square() * self.importance
        return self.sensitivity * (self.step * shrunk_peak(self.statistics, s)) ** 2 / 12 * float(squares.mean())


@dataclass(frozen=True, eq=False)
class ReadingWeight:
    """A weight that reads channels, and its input where that is rounded for this op alone."""

    node: Node
    channels: Tensor  # which factors are its columns'
    statistics: ChannelStatistics
    step: float  # of its input; 0: not rounded here
    importance: Tensor  # of each row: output noise per mean square error in it
    largest_code: int

    def noise(self, factors: Tensor) -> float:
        s, x = factors[self.channels].float(), self.statistics
        rows, power = (
            self._rows(self.weight * by_column(self.node, s)),
            self._rows(by_column(self.node, x.power / s**2)),
        )
        step = self.step and self.step * shrunk_peak(x, s)
        return rounding_noise(rows, step, power, self.largest_code, self.importance)

    def column_peak(self) -> Tensor:
        """Of each channel that it reads, relative to the rows."""
        rows = self._rows(self.weight).abs()
        relative = rows / rows.flatten(1).amax(1).clamp_min(1e-12).reshape([-1, *[1] * (rows.dim() - 1)])
        return self._of_group(relative.flatten(2).amax(2) if rows.dim() > 2 else relative).amax(1).reshape(-1)

    def column_power(self) -> Tensor:
        """What an error in each channel that it reads adds to the output noise, up to a constant."""
        rows = self._rows(self.weight).square()
        each = rows.flatten(2).sum(2) if rows.dim() > 2 else rows
        return self._of_group(each * self.importance[:, None]).sum(1).reshape(-1)

    @property
    def weight(self) -> Tensor:
        found = constant_of(operands(self.node)[1])
        assert found is not None  # has_own_constants
        return found.detach()

    def _rows(self, weight: Tensor) -> Tensor:
        return weight.transpose(0, weight_axis(self.node) or 0)

    def _of_group(self, columns: Tensor) -> Tensor:
        """rows x columns of one group -> groups x rows of one group x columns."""
        return columns.reshape(groups_of(self.node), -1, columns.shape[1])


Noisy = StoredValue | ReadingWeight


def reading_weights(module: GraphModule) -> list[Node]:
    """Ops whose channels could be scaled. A grouped transposed convolution has its rows elsewhere."""
    return [n for n in _untied(module) if weight_axis(n) == 0 or groups_of(n) == 1]


def _untied(module: GraphModule) -> list[Node]:
    tied = tied_constants(module)
    return [n for n in calls(module) if writes_channels(n) and tied.isdisjoint(operands(n))]


def input_axes(nodes: Iterable[Node]) -> dict[Node, int]:
    """The values that these ops read with a weight, each with its axis of channels."""
    return {operands(n)[0]: channel_axis(n, operands(n)[0]) for n in nodes}


def written_channels(module: GraphModule) -> dict[Node, Tensor]:
    """Results of ops with weights, with channel numbers of their own."""
    found = {}
    for n in _untied(module):
        shape = [-1 if d == channel_axis(n, n) else 1 for d in range(value_of(n).dim())]
        found[n] = torch.arange(output_width(n)).reshape(shape)
    return found


def stored_axes(values: Mapping[Node, Tensor], plan: Plan) -> dict[Node, int]:
    """The values that the plan stores as integers, of those whose channels lie along one axis."""
    found = {}
    for node, channels in values.items():
        dims = [d for d, size in enumerate(channels.shape) if size > 1]
        if len(dims) == 1 and plan.qparams(node.name) is not None:
            found[node] = dims[0] + value_of(node).dim() - channels.dim()
    return found


def product_axes(module: GraphModule, plan: Plan) -> dict[Node, int]:
    """The values before and after which a product could stand, each with its axis of channels."""
    return {**stored_axes(written_channels(module), plan), **input_axes(reading_weights(module))}


def measured_weights(
    nodes: Iterable[Node], channels: Mapping[Node, Tensor], statistics: Statistics, plan: Plan, sensitivity: Sensitivity
) -> list[ReadingWeight]:
    """With the step of the input and the codes of the weight as in the plan. What has no statistics is left out."""
    made = []
    for n in nodes:
        stats, weight, importance = statistics.get(operands(n)[0]), plan.qparams(n.name, 1), _importance(n, sensitivity)
        if stats is not None and weight is not None and importance is not None and _fits(stats, channels[n]):
            made.append(ReadingWeight(n, channels[n], stats, _input_step(n, plan, stats), importance, weight.qmax))
    return made


def measured_values(
    values: Mapping[Node, Tensor], statistics: Statistics, plan: Plan, sensitivity: Sensitivity
) -> list[StoredValue]:
    made = []
    for n, channels in values.items():
        stats, qparams, own = statistics.get(n), plan.qparams(n.name), sensitivity.get(value_name(n))
        if stats is not None and qparams is not None and isinstance(own, float) and _fits(stats, channels):
            made.append(StoredValue(n, channels.reshape(-1), stats, _step(qparams, stats), own))
    return made


def _fits(statistics: ChannelStatistics, channels: Tensor) -> bool:
    """They were recorded along this axis; no channels: along any."""
    return channels.numel() in (0, len(statistics.peak))


def with_importance(values: Sequence[StoredValue], weights: Sequence[ReadingWeight], count: int) -> list[StoredValue]:
    """A channel counts by the weights that read it, here or further on; what none reads counts as the mean."""
    power = torch.zeros(count)
    for w in weights:
        power.index_add_(0, w.channels, w.column_power())
    return [replace(v, importance=_relative(power[v.channels])) for v in values]


def _relative(power: Tensor) -> Tensor | None:
    read = power > 0
    return torch.where(read, power, power[read].mean()) / power[read].mean() if bool(read.any()) else None


def _importance(node: Node, sensitivity: Sensitivity) -> Tensor | None:
    """The sensitivity of the result, shared among its rows as that of the weight is."""
    whole, weight = sensitivity.get(value_name(node)), operands(node)[1]
    rows = sensitivity.get(operand_key(value_name(node), value_name(weight), 1))
    if not isinstance(whole, float) or not isinstance(rows, tuple):
        return None
    each = torch.tensor(rows)
    return each * (whole / len(each)) / each.mean().clamp_min(1e-30)


def _input_step(node: Node, plan: Plan, statistics: ChannelStatistics) -> float:
    """Of an input that is rounded for this op: another is a stored value."""
    if node.name in plan.dynamic:
        return float(statistics.peak.amax()) * 2 / 255 * TOKEN_NOISE**0.5
    qparams = plan.qparams(node.name, 0)
    if qparams is None or qparams == plan.qparams(operands(node)[0].name):
        return 0.0
    return _step(qparams, statistics)


def _step(qparams: QParams, statistics: ChannelStatistics) -> float:
    """That of the whole range where the plan clips it: clipping gives noise as well."""
    low, high = float(statistics.low.amin().clamp_max(0)), float(statistics.high.amax().clamp_min(0))
    return max(float(qparams.scale), (high - low) / (qparams.qmax - qparams.qmin))  # type: ignore[arg-type]
