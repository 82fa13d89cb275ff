"""What is kept of one value: exact ends, exact counts, and a histogram whose bins are the top bits of a float32.

Sign, exponent and four bits of mantissa name a bin: sixteen bins an octave over the whole range of float32. So no range
must be known before the first number arrives, two histograms merge by addition, and the memory is constant.

A bin's key is ordered as its numbers are: key k >= 0 holds the positive numbers whose top bits are k, key ~k (that is
-k - 1) their negatives. Keys 0 and -1 hold zero and the subnormals, and stand for zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHIFT = 19  # bits of a float32 below its bin
MAGNITUDES = 1 << 12  # bins of one sign
RAW_BINS = 2 * MAGNITUDES
FINITE = 255 << 4  # top bits of infinity: from here on nothing is a number


@dataclass(frozen=True)
class Stats:
    """What one value was, over all batches. Where nothing finite was seen, min and max are 0.0: ask `finite` first."""

    min: float
    max: float
    count: int
    nonfinite: int
    neginf: int  # of those
    histogram: Mapping[int, int]  # over a bounded sample of the finite elements of each batch

    @property
    def finite(self) -> int:
        return self.count - self.nonfinite

    def edges(self) -> tuple[Tensor, Tensor]:
        """Lower and upper edge of every bin in increasing order, cut to the exact min and max."""
        keys = np.fromiter(sorted(self.histogram), dtype=np.int64)
        near, far = _magnitudes(keys)
        low, high = np.where(keys < 0, -far, near), np.where(keys < 0, -near, far)
        return tuple(torch.from_numpy(np.clip(e, self.min, self.max)) for e in (low, high))  # type: ignore[return-value]

    def centers(self) -> Tensor:
        """The middle of every bin, in increasing order."""
        low, high = self.edges()
        return low + (high - low) / 2

    def counts(self) -> Tensor:
        """How much of the sample fell into every bin, in the order of `centers`."""
        return torch.tensor([self.histogram[k] for k in sorted(self.histogram)], dtype=torch.float64)

    def points(self, per_bin: int = 8) -> tuple[Tensor, Tensor]:
        """Numbers and their weights, each bin spread evenly: for errors finer than a bin, as rounding is."""
        low, high = self.edges()
        place = (torch.arange(per_bin, dtype=torch.float64) + 0.5) / per_bin
        spread = low[:, None] + (high - low)[:, None] * place
        return spread.reshape(-1), (self.counts() / per_bin).repeat_interleave(per_bin)

    def merge(self, other: Stats) -> Stats:
        seen = [s for s in (self, other) if s.finite]
        return Stats(
            min=min((s.min for s in seen), default=0.0),
            max=max((s.max for s in seen), default=0.0),
            count=self.count + other.count,
            nonfinite=self.nonfinite + other.nonfinite,
            neginf=self.neginf + other.neginf,
            histogram=_sum(self.histogram, other.histogram),
        )


def quantile(stats: Stats, q: float) -> float:
    """The number below which a fraction `q` of the sample lies; the exact min and max at 0 and 1."""
    if q <= 0 or q >= 1 or not stats.histogram:
        return stats.min if q <= 0 else stats.max
    low, high = stats.edges()
    filled = stats.counts().cumsum(0)
    i = int(torch.searchsorted(filled, q * filled[-1]))
    before = filled[i - 1] if i else 0.0
    part = (q * filled[-1] - before) / (filled[i] - before)
    return float(low[i] + part * (high[i] - low[i]))


def sparse(raw: np.ndarray) -> dict[int, int]:
    """Counts by raw top bits (sign first) -> counts by ordered key. What is no number is dropped."""
    ordered = np.concatenate([raw[MAGNITUDES : MAGNITUDES + FINITE][::-1], raw[:FINITE]])
    used = np.flatnonzero(ordered)
    return dict(zip((used - FINITE).tolist(), ordered[used].tolist(), strict=True))


def _magnitudes(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of each bin nearer to and farther from zero."""
    size = np.where(keys < 0, ~keys, keys)
    near, far = _as_float(size), _as_float(size + 1)
    return np.where(size == 0, 0.0, near), np.where(size == 0, 0.0, far)


def _as_float(size: np.ndarray) -> np.ndarray:
    # The last bin would end at infinity.
    bits = np.minimum(size << SHIFT, (FINITE << SHIFT) - 1).astype(np.int32)
    return bits.view(np.float32).astype(np.float64)


def _sum(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    return {k: a.get(k, 0) + b.get(k, 0) for k in sorted({*a, *b})}


@dataclass(frozen=True)
class Measure:
    """What one tensor was: the same as Stats, with the top bits of each element of the sample, sign first."""

    low: float
    high: float
    count: int
    nonfinite: int
    neginf: int
    bins: np.ndarray


SAMPLE = 1 << 11  # elements of one tensor that reach its histogram
_EMPTY = np.zeros(0, dtype=np.intp)


def flat(t: Tensor) -> Tensor:
    """All elements in the order of memory: a view wherever the elements lie densely, in whatever layout."""
    if t.is_contiguous():
        return t.view(-1)
    return t.permute(sorted(range(t.dim()), key=t.stride, reverse=True)).reshape(-1)


def measure(t: Tensor, turn: int = 0) -> Measure:
    """Measure a flat tensor; `turn` moves the sample, so that each batch shows other elements."""
    if t.numel() == 0:
        return Measure(math.inf, -math.inf, 0, 0, 0, _EMPTY)
    t = t.float() if t.element_size() == 1 else t  # the 8-bit floats have no reductions of their own
    count, neginf, ends = t.numel(), 0, _ends(t)
    if not all(
        map(math.isfinite, ends)
    ):  # nan and inf both surface in the ends: no pass of their own for a sound tensor
        neginf = int(t.isneginf().sum())
        t = t[t.isfinite()]
        ends = _ends(t) if t.numel() else (math.inf, -math.inf)
    return Measure(*ends, count, count - t.numel(), neginf, _bins(t, turn) if t.numel() else _EMPTY)


def _ends(t: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(t)
    return low.item(), high.item()


def _bins(t: Tensor, turn: int) -> np.ndarray:
    """The bins of a sample; by numpy, whose calls cost a fraction of torch's on so few elements."""
    plain = t if t.dtype == torch.float32 else _sample(t, turn).float()
    every = plain.cpu().numpy().view(np.uint32)
    return (_sample(every, turn) >> SHIFT).astype(np.intp)


def _sample(t: Any, turn: int) -> Any:
    """Every n-th element. A step without a common divisor with the size falls on no axis: it visits every channel."""
    size = len(t)
    if size <= SAMPLE:
        return t
    step = -(-size // SAMPLE)
    while math.gcd(step, size) > 1:
        step += 1
    return t[turn * 7919 % step :: step]
