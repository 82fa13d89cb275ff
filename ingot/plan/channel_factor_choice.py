"""Which channels to scale by which factors: those that lower the expected noise.

Channels that one weight reads, or that are stored in one value, are chosen together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import value_of
from ingot.plan.scaled_noise import Noisy, ReadingWeight, Statistics, StoredValue
from ingot.plan.smoothing_factors import MAX_NOISE_RATIO, balanced_factors
from ingot.rewrite.channel_factors import product_readers
from ingot.rewrite.scalable_channels import ScalableChannels

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the activation in a factor; 1: all its channels get one peak
HEADROOM = 1.25  # between the largest value seen of a channel and the bound of a clamp that its factor brings nearer
LARGEST_FACTOR = 2.0**10
MAX_PRODUCT_RATIO = 0.5  # of noise: an op of its own must save more
LEAST_SAVED = 0.01  # of the noise of the plan

Factors = dict[str, tuple[float, ...]]


def clamped_axes(found: ScalableChannels) -> dict[Node, int]:
    """The values before clamps, each with its axis of channels."""
    dims = {c.value: [d for d, size in enumerate(c.channels.shape) if size > 1] for c in found.clamped}
    return {v: d[0] + value_of(v).dim() - found.values[v].dim() for v, d in dims.items() if d}


def choose_factors(found: ScalableChannels, noisy: Sequence[Noisy], statistics: Statistics) -> tuple[Factors, float]:
    """By the op that writes the channels; and the noise that they save."""
    roots, free = found.roots()
    each, saved = torch.ones(len(roots), dtype=torch.float64), 0.0
    lowest, highest = _bounds(found, roots, free, statistics)
    for group in _groups(noisy):
        made, less = _best(group, each, lowest, highest)
        each, saved = (made, saved + less) if less > 0 else (each, saved)
    by_writer = {n.name: each[roots[c]].float() for n, c in found.writers.items()}
    return {name: tuple(s.tolist()) for name, s in by_writer.items() if bool((s != 1).any())}, saved


def _bounds(found: ScalableChannels, roots: Tensor, free: Tensor, statistics: Statistics) -> tuple[Tensor, Tensor]:
    """Of each root's factor: 1 where it is blocked, or a clamp was reached; else the clamp must not come too near."""
    lowest, highest = torch.zeros(len(roots), dtype=torch.float64), torch.full((len(roots),), torch.inf).double()
    blocked = roots[~free]
    lowest[blocked], highest[blocked] = 1.0, 1.0
    for clamped in found.clamped:
        stats, own = statistics.get(clamped.value), roots[clamped.channels.reshape(-1)]
        for bound in clamped.bounds:
            reached = torch.ones(len(own)) if stats is None else (stats.high if bound > 0 else -stats.low) / abs(bound)
            near = torch.where(reached >= 1, 1.0, (reached * HEADROOM).clamp(0, 1)).double()
            lowest.scatter_reduce_(0, own, near.expand(len(own)), "amax")
            highest[own] = highest[own].clamp_max(1.0)
    return lowest, highest


def _groups(noisy: Sequence[Noisy]) -> list[list[Noisy]]:
    """Those with a channel in common, where a weight reads it."""
    groups: list[tuple[set[int], list[Noisy]]] = []
    for each in noisy:
        channels, members = set(each.channels.tolist()), [each]
        for other in [g for g in groups if g[0] & channels]:
            groups.remove(other)
            channels, members = channels | other[0], [*other[1], *members]
        groups.append((channels, members))
    return [members for _, members in groups if any(isinstance(m, ReadingWeight) for m in members)]


def _best(group: Sequence[Noisy], each: Tensor, lowest: Tensor, highest: Tensor) -> tuple[Tensor, float]:
    """The factors with the least noise, and what they save; nothing where that is little."""
    before = sum(m.noise(each) for m in group)
    candidates = [_with_share(group, each, share, lowest, highest) for share in SHARES]
    noises = [sum(m.noise(c) for m in group) for c in candidates]
    least = min(range(len(SHARES)), key=noises.__getitem__)
    good = noises[least] < MAX_NOISE_RATIO * before
    return candidates[least], before - noises[least] if good else 0.0


def _with_share(group: Sequence[Noisy], each: Tensor, share: float, lowest: Tensor, highest: Tensor) -> Tensor:
    """Between the largest peak of a channel, relative to its values, and that of the weights that read it."""
    x, w = torch.zeros_like(each), torch.zeros_like(each)
    for member in group:
        peak = member.statistics.peak
        x.scatter_reduce_(0, member.channels, (peak / peak.amax().clamp_min(1e-12)).double(), "amax")
        if isinstance(member, ReadingWeight):
            w.scatter_reduce_(0, member.channels, member.column_peak().double(), "amax")
    mine = torch.cat([m.channels for m in group]).unique()
    s = balanced_factors(x[mine], torch.where(w[mine] > 0, w[mine], 1.0), share)
    bounded = highest[mine] < torch.inf
    s = s / (s[bounded].amax() if bool(bounded.any()) else s.log().mean().exp())
    s = s.clamp(1 / LARGEST_FACTOR, LARGEST_FACTOR)
    made = each.clone()
    made[mine] = torch.minimum(torch.maximum(s, lowest[mine]), highest[mine])
    return made


def choose_input_products(noisy: Sequence[Noisy], dynamic: Sequence[str], noise: float) -> tuple[Factors, float]:
    """By the value that is read, where a product of its own saves much of the noise of the plan."""
    by_value: dict[Node, list[ReadingWeight]] = {}
    for w in (m for m in noisy if isinstance(m, ReadingWeight) and m.step > 0):
        by_value.setdefault(operands(w.node)[0], []).append(w)
    found, saved = Factors(), 0.0
    for value, group in by_value.items():
        if {w.node for w in group} == set(product_readers(value)) and not {w.node.name for w in group} & {*dynamic}:
            made, less = _product_of(group)
            if less > LEAST_SAVED * noise:
                found[value.name], saved = made, saved + less
    return found, saved


def _product_of(group: Sequence[ReadingWeight]) -> tuple[tuple[float, ...], float]:
    width = len(group[0].statistics.peak)
    own = [replace(w, channels=torch.arange(width)) for w in group]
    ones = torch.ones(width, dtype=torch.float64)
    made, saved = _best(own, ones, torch.zeros_like(ones), torch.full_like(ones, torch.inf))
    before = sum(w.noise(ones) for w in own)
    return tuple(made.float().tolist()), saved if saved > (1 - MAX_PRODUCT_RATIO) * before else 0.0


def choose_result_products(values: Sequence[StoredValue], noise: float) -> tuple[Factors, float]:
    """By the op that writes a value: all its channels get one peak, where that saves much of the noise of the plan."""
    found, saved = Factors(), 0.0
    for v in values:
        peak = v.statistics.peak.double()
        factors = (peak / peak.amax().clamp_min(1e-12)).clamp_min(1 / LARGEST_FACTOR)
        before, after = (
            replace(v, channels=torch.arange(len(peak))).noise(s) for s in (torch.ones_like(peak), factors)
        )
        if after < MAX_PRODUCT_RATIO * before and before - after > LEAST_SAVED * noise:
            found[v.node.name], saved = tuple(factors.float().tolist()), saved + before - after
    return found, saved
