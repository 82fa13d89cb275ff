"""Calibration statistics for the report: histograms with even bins, chosen ranges, badly covered values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.calibrate.histogram import Stats
from ingot.calibrate.statistics import Ranges
from ingot.plan.plan_data import QParams
from ingot.result.details.records import CalibrationSummary, Distribution

BINS = 48


def stats_of(ranges: Ranges | None) -> dict[str, Stats]:
    """Statistics by value, with those of values that rewrites added."""
    if ranges is None:
        return {}
    return {**{n: s for more in ranges.rewritten.values() for n, s in more.values.items()}, **ranges.values}


def distribution_of(stats: Stats, qparams: QParams | None) -> Distribution:
    """The bins cover the recorded and the chosen range."""
    chosen = qparams.representable_range if qparams is not None and qparams.axis is None else None
    low, high = (min(stats.min, *chosen), max(stats.max, *chosen)) if chosen else (stats.min, stats.max)
    bins = _even_bins(stats, low, high) if stats.histogram and high > low else ()
    return Distribution(stats.min, stats.max, stats.count, stats.nonfinite, low, high, bins, chosen)


def _even_bins(stats: Stats, low: float, high: float) -> tuple[float, ...]:
    numbers, weights = stats.points()
    counts, _ = np.histogram(numbers.numpy(), bins=BINS, range=(low, high), weights=weights.numpy())
    return tuple(float(f"{share:.3g}") for share in counts / max(float(counts.sum()), 1e-30))


def calibration_summary(ranges: Ranges) -> CalibrationSummary:
    suspect = {
        kind: names for kind, names in _suspect_values(stats_of(ranges), ranges.constant_inputs).items() if names
    }
    return CalibrationSummary(ranges.batches, ranges.samples, len(ranges.values), ranges.notes, suspect)


def _suspect_values(values: Mapping[str, Stats], steady: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {
        "not observed": tuple(n for n, s in values.items() if not s.count),
        "no finite element": tuple(n for n, s in values.items() if s.count and not s.finite),
        "some elements not finite": tuple(n for n, s in values.items() if s.nonfinite and s.finite),
        "constant": tuple(n for n, s in values.items() if s.finite > 1 and s.min == s.max),
        "identical in all batches": tuple(steady),
    }
