"""Which channels to scale by which factors: those that lower the noise that the weights reading them would give.

The noise of a product is that of its rounded input plus that of its rounded weight; factors trade one for the other.
Channels that one weight reads, or that meet in one value, are chosen together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.calibrate.channel_statistics import ChannelStatistics
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import groups_of, weight_axis
from ingot.core.fx import calls, constant_of, value_name
from ingot.plan.cost_model import TOKEN_NOISE
from ingot.plan.plan_data import Plan
from ingot.plan.smoothing_factors import MAX_NOISE_RATIO, balanced_factors, rounding_noise
from ingot.rewrite.channel_factors import product_readers
from ingot.rewrite.scalable_channels import ScalableChannels, by_column, channel_axis, has_own_constants

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the activation in a factor; 1: all its channels get one peak
HEADROOM = 1.25  # between the largest value seen of a channel and the bound of a clamp that its factor brings nearer
LARGEST_FACTOR = 2.0**10
MAX_PRODUCT_RATIO = 0.5  # of noise: an op of its own must save more
LEAST_SAVED = 0.01  # of the noise of the plan

Statistics = Mapping[Node, ChannelStatistics]
Factors = dict[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class ReadingWeight:
    """A weight that reads channels, and the noise that its product would have with factors on them."""

    node: Node
    channels: Tensor  # which factors are its columns'
    statistics: ChannelStatistics
    step: float  # of its input; 0: not rounded
    sensitivity: float
    largest_code: int

    def noise(self, factors: Tensor) -> float:
        s, x = factors[self.channels].float(), self.statistics
        shrunk = float((x.peak / s).amax() / x.peak.amax().clamp_min(1e-12))
        rows, power = self._rows(self.weight * by_column(self.node, s)), self._rows(by_column(self.node, x.power / s**2))
        return self.sensitivity / len(rows) * rounding_noise(rows, self.step * shrunk, power, self.largest_code)

    def column_peak(self) -> Tensor:
        """Of each channel that it reads, relative to the rows."""
        rows = self._rows(self.weight).abs()
        relative = rows / rows.flatten(1).amax(1).clamp_min(1e-12).reshape([-1, *[1] * (rows.dim() - 1)])
        return self._by_input(relative.flatten(2).amax(2) if rows.dim() > 2 else relative)

    @property
    def weight(self) -> Tensor:
        found = constant_of(operands(self.node)[1])
        assert found is not None  # has_own_constants
        return found.detach()

    def _rows(self, weight: Tensor) -> Tensor:
        return weight.transpose(0, weight_axis(self.node) or 0)

    def _by_input(self, peaks: Tensor) -> Tensor:
        """rows x columns of one group -> the largest of each input channel."""
        return peaks.reshape(groups_of(self.node), -1, peaks.shape[1]).amax(1).reshape(-1)


def reading_weights(module: GraphModule) -> list[Node]:
    """Ops whose channels could be scaled. A grouped transposed convolution has its rows elsewhere."""
    able = (n for n in calls(module) if weight_axis(n) is not None and has_own_constants(n))
    return [n for n in able if weight_axis(n) == 0 or groups_of(n) == 1]


def wanted_statistics(nodes: Iterable[Node], found: ScalableChannels) -> dict[Node, int]:
    """The values whose channels decide, each with its axis of channels."""
    inputs = {operands(n)[0]: channel_axis(n, operands(n)[0]) for n in nodes}
    sizes = {c.value: [d for d, size in enumerate(c.channels.shape) if size > 1] for c in found.clamped}
    return inputs | {value: dims[0] + value.meta["val"].dim() - _rank(value, found) for value, dims in sizes.items() if dims}


def _rank(value: Node, found: ScalableChannels) -> int:
    return found.values[value].dim()


def choose_factors(
    found: ScalableChannels, weights: Sequence[ReadingWeight], statistics: Statistics
) -> tuple[Factors, float]:
    """By the op that writes the channels; and the noise that they save."""
    roots, free = found.roots()
    each, saved = torch.ones(len(roots), dtype=torch.float64), 0.0
    lowest, highest = _bounds(found, roots, free, statistics)
    for group in _groups(weights, free):
        made, less = _best(group, each, lowest, highest)
        each, saved = (made, saved + less) if less > 0 else (each, saved)
    by_writer = {n.name: each[roots[c]].float() for n, c in found.writers.items()}
    return {name: tuple(s.tolist()) for name, s in by_writer.items() if bool((s != 1).any())}, saved


def _bounds(found: ScalableChannels, roots: Tensor, free: Tensor, statistics: Statistics) -> tuple[Tensor, Tensor]:
    """Of each root's factor: 1 where it is blocked, or where a clamp was reached; else the clamp must not come too near."""
    lowest, highest = torch.zeros(len(roots), dtype=torch.float64), torch.full((len(roots),), torch.inf).double()
    blocked = roots[~free]
    lowest[blocked], highest[blocked] = 1.0, 1.0
    for clamped in found.clamped:
        stats, own = statistics.get(clamped.value), roots[clamped.channels.reshape(-1)]
        for bound in clamped.bounds:
            reached = torch.ones(len(own)) if stats is None else (stats.high if bound > 0 else -stats.low) / abs(bound)
            near = torch.where(reached >= 1, 1.0, (reached * HEADROOM).clamp(0, 1)).double()
            lowest.index_reduce_(0, own, near.expand(len(own)), "amax")
            highest[own] = highest[own].clamp_max(1.0)
    return lowest, highest


def _groups(weights: Sequence[ReadingWeight], free: Tensor) -> list[list[ReadingWeight]]:
    """Weights with a channel in common, of those with a free one."""
    groups: list[tuple[set[int], list[ReadingWeight]]] = []
    for w in (w for w in weights if w.step > 0):
        channels, members = set(w.channels.tolist()), [w]
        for other in [g for g in groups if g[0] & channels]:
            groups.remove(other)
            channels, members = channels | other[0], [*other[1], *members]
        groups.append((channels, members))
    return [members for _, members in groups]


def _best(
    group: Sequence[ReadingWeight], each: Tensor, lowest: Tensor, highest: Tensor
) -> tuple[Tensor, float]:
    """The factors with the least noise, and what they save; nothing where that is little."""
    before = sum(w.noise(each) for w in group)
    candidates = [_with_share(group, each, share, lowest, highest) for share in SHARES]
    noises = [sum(w.noise(c) for w in group) for c in candidates]
    least = min(range(len(SHARES)), key=noises.__getitem__)
    good = noises[least] < MAX_NOISE_RATIO * before
    return candidates[least], before - noises[least] if good else 0.0


def _with_share(group: Sequence[ReadingWeight], each: Tensor, share: float, lowest: Tensor, highest: Tensor) -> Tensor:
    x, w = torch.zeros_like(each), torch.zeros_like(each)
    for reader in group:
        peak = reader.statistics.peak
        x.index_reduce_(0, reader.channels, (peak / peak.amax().clamp_min(1e-12)).double(), "amax")
        w.index_reduce_(0, reader.channels, reader.column_peak().double(), "amax")
    mine = torch.cat([r.channels for r in group]).unique()
    s = balanced_factors(x[mine], w[mine], share)
    bounded = highest[mine] < torch.inf
    s = s / (s[bounded].amax() if bool(bounded.any()) else s.log().mean().exp())
    s = s.clamp(1 / LARGEST_FACTOR, LARGEST_FACTOR)
    made = each.clone()
    made[mine] = torch.minimum(torch.maximum(s, lowest[mine]), highest[mine])
    return made


def choose_products(weights: Sequence[ReadingWeight], noise: float) -> tuple[Factors, float]:
    """By the value that is read, where a product of its own saves much of the noise of the plan."""
    by_value: dict[Node, list[ReadingWeight]] = {}
    for w in weights:
        by_value.setdefault(operands(w.node)[0], []).append(w)
    found, saved = Factors(), 0.0
    for value, group in by_value.items():
        if {w.node for w in group} != set(product_readers(value)):
            continue
        made, less = _product_of(group)
        if less > LEAST_SAVED * noise:
            found[value.name], saved = made, saved + less
    return found, saved


def _product_of(group: Sequence[ReadingWeight]) -> tuple[tuple[float, ...], float]:
    width = len(group[0].statistics.peak)
    own = [ReadingWeight(w.node, torch.arange(width), w.statistics, w.step, w.sensitivity, w.largest_code) for w in group]
    none, all_ = torch.zeros(width).double(), torch.full((width,), torch.inf).double()
    ones = torch.ones(width, dtype=torch.float64)
    made, saved = _best(own, ones, none, all_)
    before = sum(w.noise(ones) for w in own)
    return tuple(made.float().tolist()), saved if saved > (1 - MAX_PRODUCT_RATIO) * before else 0.0


def measured_weights(
    nodes: Iterable[Node], channels: Mapping[Node, Tensor], statistics: Statistics, plan: Plan,
    sensitivity: Mapping[str, float | tuple[float, ...]],
) -> list[ReadingWeight]:  # fmt: skip
    """With the step of the input and the codes of the weight as in the plan. What has no statistics is left out."""
    made = []
    for n in nodes:
        stats, weight, felt = statistics.get(operands(n)[0]), plan.qparams(n.name, 1), sensitivity.get(value_name(n))
        if stats is not None and weight is not None and isinstance(felt, float) and n in channels:
            step = _step(n, plan, stats)
            made.append(ReadingWeight(n, channels[n], stats, step, felt, weight.qmax))
    return made


def _step(node: Node, plan: Plan, statistics: ChannelStatistics) -> float:
    if node.name in plan.dynamic:
        return float(statistics.peak.amax()) * 2 / 255 * TOKEN_NOISE**0.5
    qparams = plan.qparams(node.name, 0)
    return qparams.scale if qparams is not None and isinstance(qparams.scale, float) else 0.0
