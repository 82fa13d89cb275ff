"""What was recorded, as a page can draw it: even bins, the chosen range, and what was seen too little of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.calibrate.histogram import Stats
from ingot.calibrate.statistics import Ranges
from ingot.plan.model import QParams
from ingot.result.details.model import Recorded, Spread

BINS = 48


def stats_of(ranges: Ranges | None) -> dict[str, Stats]:
    """With the values that only rewriting made."""
    if ranges is None:
        return {}
    return {**{n: s for more in ranges.again.values() for n, s in more.values.items()}, **ranges.values}


def spread_of(stats: Stats, storage: QParams | None) -> Spread:
    """Bins reach over what was recorded and what was chosen, whichever is wider."""
    chosen = storage.representable_range if storage is not None and storage.axis is None else None
    low, high = (min(stats.min, *chosen), max(stats.max, *chosen)) if chosen else (stats.min, stats.max)
    bins = _even(stats, low, high) if stats.histogram and high > low else ()
    return Spread(stats.min, stats.max, stats.count, stats.nonfinite, low, high, bins, chosen)


def _even(stats: Stats, low: float, high: float) -> tuple[float, ...]:
    numbers, weights = stats.points()
    counts, _ = np.histogram(numbers.numpy(), bins=BINS, range=(low, high), weights=weights.numpy())
    return tuple(float(f"{share:.3g}") for share in counts / max(float(counts.sum()), 1e-30))


def recorded_of(ranges: Ranges) -> Recorded:
    lacking = {kind: names for kind, names in _lacking(stats_of(ranges), ranges.steady).items() if names}
    return Recorded(ranges.batches, ranges.samples, len(ranges.values), ranges.notes, lacking)


def _lacking(values: Mapping[str, Stats], steady: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {
        "never seen": tuple(n for n, s in values.items() if not s.count),
        "never finite": tuple(n for n, s in values.items() if s.count and not s.finite),
        "not finite in some elements": tuple(n for n, s in values.items() if s.nonfinite and s.finite),
        "one and the same number": tuple(n for n, s in values.items() if s.finite > 1 and s.min == s.max),
        "the same in every batch": tuple(steady),
    }
