"""Chances: how likely is it that noise alone gives a mean square, or a count, as large as the one observed?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 1e-300  # a chance is never reported as zero
MANY = 1e9  # degrees of freedom of what is known exactly


def variance_chance(ratio: float, samples: float, known: float) -> float:
    """Chance that a mean square of `samples` values is at least `ratio` times a variance estimated from `known` values.

    The upper tail of the F distribution.
    """
    if math.isinf(ratio):
        return SMALLEST
    if ratio <= 0 or samples <= 0 or known <= 0:
        return 1.0
    known = min(known, MANY)
    return incomplete_beta(known / (known + samples * ratio), known / 2, samples / 2)


def degrees_of_freedom(kurtosis: float) -> float:
    """Of the Student's t whose tails are as heavy as this kurtosis says: a Gaussian has 3, and infinitely many."""
    return 4 + 6 / (kurtosis - 3) if kurtosis > 3 else MANY


def count_chance(count: float, samples: float, share: float) -> float:
    """Chance that at least `count` of `samples` values exceed a level that a share of values exceeds elsewhere.

    The upper tail of the binomial distribution, also for an effective number of samples that is no integer.
    """
    count = min(count, samples)
    return 1.0 if count <= 0 or share >= 1 else incomplete_beta(share, count, samples - count + 1)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return SMALLEST if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly on the other side only
        return max(1 - incomplete_beta(1 - x, b, a), SMALLEST)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return max(math.exp(max(log_front, -690)) * _continued_fraction(x, a, b) / a, SMALLEST)


def _continued_fraction(x: float, a: float, b: float, terms: int = 10_000) -> float:
    """Lentz's method."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, terms):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + factor * d)
            c = _off_zero(1 + factor / c)
            value *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


@dataclass(frozen=True)
class PooledVariance:
    """Variances of channels, each shrunk towards that of its group, and from how many values each is known."""

    variance: Tensor
    known: Tensor


def pool_variances(variance: Tensor, samples: Tensor) -> PooledVariance:
    """Empirical Bayes: how far each channel is drawn to the group depends on how alike the group's channels are."""
    typical, weight = typical_variance(variance, samples)
    if weight == 0:
        return PooledVariance(variance, samples)
    return PooledVariance((weight * typical + samples * variance) / (weight + samples), samples + weight)


def typical_variance(variance: Tensor, samples: Tensor) -> tuple[float, float]:
    """The variance that a channel of this group has, and from how many samples' worth one could tell it beforehand.

    The logarithms of estimated variances scatter by trigamma(samples / 2) even where all channels are alike. What they
    scatter beyond that gives the weight of the group (G. K. Smyth, 2004: moderated variances).
    """
    seen = (variance > 0) & (samples > 0)
    if int(seen.sum()) < 3:
        return 0.0, 0.0
    half = samples[seen] / 2
    logs = variance[seen].log() - torch.digamma(half) + half.log()
    spread = float(logs.var() - torch.polygamma(1, half).mean())
    weight = MANY if spread <= 0 else min(2 * _inverse_trigamma(spread), MANY)
    half_weight = torch.tensor(weight / 2, dtype=torch.float64)
    return float((logs.mean() + torch.digamma(half_weight) - half_weight.log()).exp()), weight


def _inverse_trigamma(value: float) -> float:
    """Newton's method on 1 / trigamma, which is nearly linear."""
    x = torch.tensor(0.5 + 1 / value, dtype=torch.float64)
    for _ in range(50):
        slope = torch.polygamma(1, x)
        step = slope * (1 - slope / value) / torch.polygamma(2, x)
        x = x + step
        if float(-step / x) < 1e-9:
            break
    return float(x)
