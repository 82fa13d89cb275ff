"""Does an artefact differ from its quantized graph by more than rounding explains, in any slice of an output?

Two runs of a deep int8 net that round one tie differently end with independent rounding noise. Their difference is then
sqrt(2) times the noise of each against the float model. So a slice fails if it differs from its graph by more than
twice its noise, or if its error against the float model is sqrt(2) times that of its graph, and if that is no chance:
the noise of four values is known badly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ingot.core.artefact import SliceCheck
from ingot.verify.chance import (
    PooledVariance,
    count_chance,
    degrees_of_freedom,
    pool_variances,
    typical_variance,
    variance_chance,
)
from ingot.verify.channel_scatter import Scatter, channel_scatter, scatter_chance
from ingot.verify.metrics import power_ratio_db
from ingot.verify.slices import Differences, Slices, slice_sums

MOST_NOISE = 4.0  # mean square between artefact and graph, in units of that between graph and float model
MOST_ERROR = 2.0  # mean square between artefact and float model, in the same units
TIE_NOISE = 2.0  # of two runs with independent rounding noise
SIGNIFICANT = 1e-6  # chance of a false alarm that is allowed in one output
MOST_JUDGED = 64  # the slices of a view that differ most
TESTS = 4  # of each slice
LEVELS = tuple(4.0**k for k in range(-3, 2))  # at which differences are counted, in units of the noise
STEP = 12.0  # the square of a step, in units of its rounding noise
TWO_STEPS = 2 * STEP
FEWEST_SAMPLES = 8  # fewer do not tell that a slice is ruined


@dataclass(frozen=True)
class Suspect:
    """A slice that noise may not explain, and what it was compared with: "graph" or "float"."""

    slice: SliceCheck
    against: str
    error_ratio: float  # rms error against the float model, in units of that of the quantized graph


def suspects(given: Differences, found: Sequence[Slices]) -> Iterator[Suspect]:
    """The most suspicious slices, each with the chance that noise alone does this in any slice of the output."""
    tests = TESTS * sum(int((s.count > 0).sum()) for s in found)
    groups = max(s.view.groups for s in found)
    for slices in found:
        yield from _disagreement(given, slices, tests)
        if slices.view.groups == groups and slices.view.size > 1:
            yield from _ruined(slices, tests)


def _disagreement(given: Differences, slices: Slices, tests: int) -> Iterator[Suspect]:
    count = slices.count.clamp(min=1)
    noise, graph, error, floor = (x / count for x in (slices.noise, slices.graph, slices.error, slices.floor))
    off = graph > floor
    differs = off & ((graph > MOST_NOISE * noise) | ((error > MOST_ERROR * noise) & (graph > noise)))
    if not differs.any():
        return
    pooled = _pooled(noise, slices)
    exact = bool((pooled.variance[differs] == 0).any())
    counts = _counted(given, slices, pooled) if exact or slices.view.kind.startswith("channel") else None
    worst = torch.where(differs, graph / pooled.variance.clamp(min=1e-300), -1.0).topk(min(MOST_JUDGED, len(graph)))
    for i in worst.indices[worst.values > 0].tolist():
        chance = _chance(i, slices, pooled, graph, error, noise, counts)
        yield _suspect(i, slices, chance * tests, "graph")


def _pooled(noise: Tensor, slices: Slices) -> PooledVariance:
    """However many slices tell the same variance, noise with heavy tails exceeds it more often than a Gaussian."""
    pooled = pool_variances(noise, slices.samples)
    used = pooled.variance > 0
    values = float(slices.count[used].sum())
    kurtosis = float((slices.fourth[used] / pooled.variance[used].square()).sum()) / max(values, 1.0)
    most = torch.clamp(slices.samples, min=degrees_of_freedom(kurtosis))
    return replace(pooled, known=torch.minimum(pooled.known, most))


def _chance(
    i: int, slices: Slices, pooled: PooledVariance, graph: Tensor, error: Tensor, noise: Tensor, counts: _Counts | None
) -> float:
    """The smallest of four: by the difference to the graph, by the error, by how often and how far others differ."""
    samples, known = max(1.0, float(slices.samples[i])), float(pooled.known[i])
    variance, found = float(pooled.variance[i]), [1.0]
    # A step in a value or two is a tie. It says little where the graph is constant: nothing is known of its noise then.
    usual = max(variance, min(1.0, TWO_STEPS / float(slices.count[i])))
    if variance == 0:  # rounding changes nothing here, as far as was seen: a step function, such as a mask
        return _count_chance(i, slices, counts) if counts is not None and counts.noisy_values else 0.0
    if graph[i] > MOST_NOISE * noise[i]:
        found.append(variance_chance(float(graph[i]) / usual / TIE_NOISE, samples, known))
        if counts is not None:
            found += _against_other_channels(i, slices, counts)
    if error[i] > MOST_ERROR * noise[i]:
        found.append(variance_chance(float(error[i]) / usual, samples, known))
    return min(found)


@dataclass(frozen=True)
class _Counts:
    """By level: how many values differ from the graph by more than that, in each channel, and by rounding noise."""

    by_slice: Tensor  # level x slice
    noisy: Tensor  # in runs of the graph with rounding noise
    noisy_values: float
    scatter: Scatter | None


def _counted(given: Differences, slices: Slices, pooled: PooledVariance) -> _Counts:
    unit, view = torch.where(pooled.variance > 0, pooled.variance, 1.0).sqrt(), slices.view

    def count(differences: Sequence[Tensor], level: float) -> Tensor:
        return slice_sums((t.abs() > level * unit[k] for t, k in zip(differences, view.keys, strict=True)), view)

    noisy = [sum((count(run, level).sum() for run in given.noisy), torch.tensor(0.0)) for level in LEVELS]
    values = float(slices.count.sum()) * len(given.noisy)
    by_slice = torch.stack([count(given.graph, level) for level in LEVELS])
    return _Counts(by_slice, torch.stack(noisy), values, channel_scatter(given, view, unit))


def _against_other_channels(i: int, slices: Slices, counts: _Counts) -> Iterator[float]:
    yield _count_chance(i, slices, counts)
    if counts.scatter is not None:
        yield scatter_chance(i, counts.scatter, float(slices.count[i]), slices.share)


def _count_chance(i: int, slices: Slices, counts: _Counts) -> float:
    """A tie that rounds differently changes all channels alike: does this one differ more often than the others?"""
    own, rest = float(slices.count[i]), float(slices.count.sum() - slices.count[i]) + counts.noisy_values
    if rest == 0:
        return 1.0
    mine = counts.by_slice[:, i]
    elsewhere = (counts.by_slice.sum(1) - mine + counts.noisy + 1) / (rest + 1)
    each = zip((mine * slices.share).tolist(), elsewhere.tolist(), strict=True)
    return min(1.0, len(LEVELS) * min(count_chance(k, own * slices.share, share) for k, share in each))


def _ruined(slices: Slices, tests: int) -> Iterator[Suspect]:
    """Slices that rounding has made useless: their error is larger than their signal, and than a step of their group.

    The signal is what varies. A slice whose signal is within the noise of its group is hardly used, and passes.
    """
    count, view = slices.count.clamp(min=1), slices.view
    error, signal, floor = (x / count for x in (slices.error, slices.signal, slices.floor))
    signal = signal - slices.mean.square()
    total, values = (_of_group(x, view.size) for x in (slices.error, slices.count))
    others = (total - slices.error) / (values - slices.count).clamp(min=1)
    lost = (error >= (1 - 1e-6) * signal) & (signal > others) & (error > STEP * others) & (error > floor)
    lost &= slices.samples >= FEWEST_SAMPLES
    for i in lost.nonzero().flatten().tolist()[:MOST_JUDGED]:
        kept = torch.arange(len(error)) != i
        typical, weight = typical_variance(error[kept], slices.samples[kept])
        weight = weight or float(slices.samples[kept].sum())
        usual = max(typical, float(others[i]))
        chance = variance_chance(float(error[i]) / usual, max(1.0, float(slices.samples[i])), weight) if usual else 1.0
        yield _suspect(i, slices, chance * tests, "float")


def _of_group(sums: Tensor, size: int) -> Tensor:
    """For each slice the sum over all slices of its group."""
    return sums.view(-1, size).sum(1).repeat_interleave(size)


def _suspect(i: int, slices: Slices, chance: float, against: str) -> Suspect:
    view, count = slices.view, float(slices.count[i])
    noise, graph, error, signal = (
        float(x[i]) / count for x in (slices.noise, slices.graph, slices.error, slices.signal)
    )
    made = SliceCheck(
        view.kind, i % view.size, view.size, i // view.size, int(count), float(slices.samples[i]),
        _rms_ratio(graph, noise), power_ratio_db(signal, graph), power_ratio_db(signal, error), min(1.0, chance),
    )  # fmt: skip
    return Suspect(made, against, _rms_ratio(error, noise))


def _rms_ratio(square: float, noise: float) -> float:
    return math.sqrt(square / noise) if noise > 0 else math.inf
