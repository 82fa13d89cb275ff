"""Statistics of one value: exact min and max, exact counts, and a log-binned histogram.

A bin is given by the top bits of a float32: sign, exponent and four bits of mantissa, so 16 bins per octave over the
whole float32 range. No range must be known in advance, histograms merge by addition, and memory is constant.

Bin keys are ordered like the numbers in them: key k >= 0 holds the positive numbers with top bits k, key ~k (-k - 1)
their negatives. Keys 0 and -1 hold zero and subnormals; both count as zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BIN_SHIFT = 19  # float32 bits that do not select the bin
BINS_PER_SIGN = 1 << 12
RAW_BINS = 2 * BINS_PER_SIGN
INFINITY_BIN = 255 << 4  # top bits of infinity; larger ones are NaN


@dataclass(frozen=True)
class Stats:
    """Statistics of one value over all batches. Without finite elements min and max are 0.0: check `finite` first."""

    min: float
    max: float
    count: int
    nonfinite: int
    neginf: int  # included in nonfinite
    histogram: Mapping[int, int]  # of at most MAX_SAMPLE finite elements per batch

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nonfinite

    def edges(self) -> tuple[Tensor, Tensor]:
        """Lower and upper edge of every bin in increasing order, clipped to the exact min and max."""
        keys = np.fromiter(sorted(self.histogram), dtype=np.int64)
        inner, outer = _magnitudes(keys)
        low, high = np.where(keys < 0, -outer, inner), np.where(keys < 0, -inner, outer)
        return tuple(torch.from_numpy(np.clip(e, self.min, self.max)) for e in (low, high))  # type: ignore[return-value]

    def centers(self) -> Tensor:
        """The center of every bin, in increasing order."""
        low, high = self.edges()
        return low + (high - low) / 2

    def counts(self) -> Tensor:
        """Sampled elements per bin, in the order of `centers`."""
        return torch.tensor([self.histogram[k] for k in sorted(self.histogram)], dtype=torch.float64)

    def points(self, per_bin: int = 8) -> tuple[Tensor, Tensor]:
        """Evenly spaced points per bin and their weights, to estimate errors finer than a bin (rounding)."""
        low, high = self.edges()
        offset = (torch.arange(per_bin, dtype=torch.float64) + 0.5) / per_bin
        spread = low[:, None] + (high - low)[:, None] * offset
        return spread.reshape(-1), (self.counts() / per_bin).repeat_interleave(per_bin)

    def merge(self, other: Stats) -> Stats:
        """Statistics over the data of both."""
        parts = [s for s in (self, other) if s.finite]
        return Stats(
            min=min((s.min for s in parts), default=0.0),
            max=max((s.max for s in parts), default=0.0),
            count=self.count + other.count,
            nonfinite=self.nonfinite + other.nonfinite,
            neginf=self.neginf + other.neginf,
            histogram=_sum(self.histogram, other.histogram),
        )


def quantile(stats: Stats, q: float) -> float:
    """The `q` quantile of the sample, linearly interpolated within a bin. Exact min and max at 0 and 1."""
    if q <= 0 or q >= 1 or not stats.histogram:
        return stats.min if q <= 0 else stats.max
    low, high = stats.edges()
    cumulative = stats.counts().cumsum(0)
    i = int(torch.searchsorted(cumulative, q * cumulative[-1]))
    before = cumulative[i - 1] if i else 0.0
    fraction = (q * cumulative[-1] - before) / (cumulative[i] - before)
    return float(low[i] + fraction * (high[i] - low[i]))


def sparse_histogram(raw: np.ndarray) -> dict[int, int]:
    """Counts by raw top bits (sign first) -> counts by ordered key. NaN and infinity are dropped."""
    ordered = np.concatenate([raw[BINS_PER_SIGN : BINS_PER_SIGN + INFINITY_BIN][::-1], raw[:INFINITY_BIN]])
    used = np.flatnonzero(ordered)
    return dict(zip((used - INFINITY_BIN).tolist(), ordered[used].tolist(), strict=True))


def _magnitudes(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges of each bin as magnitudes: the one nearer to zero, the one farther from it."""
    magnitude = np.where(keys < 0, ~keys, keys)
    inner, outer = _as_float(magnitude), _as_float(magnitude + 1)
    return np.where(magnitude == 0, 0.0, inner), np.where(magnitude == 0, 0.0, outer)


def _as_float(magnitude: np.ndarray) -> np.ndarray:
    # Clamp: the last bin would end at infinity.
    bits = np.minimum(magnitude << BIN_SHIFT, (INFINITY_BIN << BIN_SHIFT) - 1).astype(np.int32)
    return bits.view(np.float32).astype(np.float64)


def _sum(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    return {k: a.get(k, 0) + b.get(k, 0) for k in sorted({*a, *b})}


@dataclass(frozen=True)
class Observation:
    """Statistics of one tensor: like Stats, with the bin (raw top bits) of each sampled element."""

    low: float
    high: float
    count: int
    nonfinite: int
    neginf: int
    bins: np.ndarray


MAX_SAMPLE = 1 << 11  # elements per tensor that are counted in its histogram
_EMPTY = np.zeros(0, dtype=np.intp)


def flatten_dense(t: Tensor) -> Tensor:
    """All elements in memory order: a view of any dense layout, else a copy."""
    if t.is_contiguous():
        return t.view(-1)
    return t.permute(sorted(range(t.dim()), key=t.stride, reverse=True)).reshape(-1)


def observe(t: Tensor, batch_index: int = 0) -> Observation:
    """Statistics of a flat tensor. `batch_index` shifts the sample, so that batches sample different elements."""
    if t.numel() == 0:
        return Observation(math.inf, -math.inf, 0, 0, 0, _EMPTY)
    t = t.float() if t.element_size() == 1 else t  # torch has no reductions for 8-bit floats
    count, neginf, bounds = t.numel(), 0, _bounds(t)
    # NaN and infinity both show in the bounds, so a finite tensor needs no extra pass.
    if not all(map(math.isfinite, bounds)):
        neginf = int(t.isneginf().sum())
        t = t[t.isfinite()]
        bounds = _bounds(t) if t.numel() else (math.inf, -math.inf)
    return Observation(*bounds, count, count - t.numel(), neginf, _bins(t, batch_index) if t.numel() else _EMPTY)


def _bounds(t: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(t)
    return low.item(), high.item()


def _bins(t: Tensor, batch_index: int) -> np.ndarray:
    """Bins of the sampled elements. Uses numpy: its calls cost less than those of torch on small arrays."""
    floats = t if t.dtype == torch.float32 else _sample(t, batch_index).float()
    bits = floats.cpu().numpy().view(np.uint32)
    return (_sample(bits, batch_index) >> BIN_SHIFT).astype(np.intp)


def _sample(t: Any, batch_index: int) -> Any:
    """Every n-th element. A step coprime to the size is aligned with no axis, so every channel is sampled."""
    size = len(t)
    if size <= MAX_SAMPLE:
        return t
    step = -(-size // MAX_SAMPLE)
    while math.gcd(step, size) > 1:
        step += 1
    return t[batch_index * 7919 % step :: step]
