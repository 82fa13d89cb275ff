"""From a histogram to a range: min-max, percentile, least square error, least information lost; or the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ingot.plan.model import QParams
from ingot.plan.noise_model import CLIPPED, Points, errors
from ingot.plan.qparams import qparams_for
from ingot.plan.value_ranges import Span, with_zero
from ingot.targets.base import Format

Measure = Callable[[Sequence[QParams], float], np.ndarray]  # what each storage costs, given what clipping counts
METHODS = ("percentile", "mse", "entropy")  # that may draw the ends in
SHRINK = np.array([1.0, 0.97, 0.93, 0.88, 0.82, 0.75, 0.67, 0.58, 0.5, 0.42, 0.34, 0.26, 0.2, 0.14, 0.1])
PERCENTILE = 99.99
WORTHWHILE = 0.98  # a narrower range must save more than this of the error: histograms are samples
TINY = 1e-9  # probability of what was never seen
FINE = 16  # bins a step, in which the entropy method looks at a distribution


def choose(
    points: Points, span: Span, form: Format, method: str, measure: Measure | None = None
) -> tuple[QParams, str]:
    """How to store numbers of this distribution, whose ends are `span`; and what was weighed, in words."""
    measure = measure or partial(errors, points)
    span = with_zero(span)
    plain = qparams_for(*span, form)
    if method == "minmax" or span[0] == span[1] or form.qmax - form.qmin > 1 << 10:
        return plain, "min-max"  # sixteen bits round finer than any clipping could pay
    if method != "auto":
        return qparams_for(*_by_name(method, points, span, form, measure), form), method
    return _best(points, span, form, plain, measure)


def _best(points: Points, span: Span, form: Format, plain: QParams, measure: Measure) -> tuple[QParams, str]:
    """The candidates of all methods, compared by what reaches the readers."""
    tried = [qparams_for(*_by_name(n, points, span, form, measure), form) for n in METHODS]
    whole, *found = measure([plain, *tried], CLIPPED).tolist()
    best = min(range(len(METHODS)), key=lambda i: found[i])
    if found[best] >= whole * WORTHWHILE:
        return plain, "min-max, no narrower range has less error"
    return tried[
        best
    ], f"{METHODS[best]}, {found[best] / whole:.2f} of the error of min-max {span[0]:.4g} … {span[1]:.4g}"


def _by_name(method: str, points: Points, span: Span, form: Format, measure: Measure) -> Span:
    name, _, number = method.partition(":")
    if name == "percentile":
        return percentile(points, span, float(number or PERCENTILE))
    if name == "mse":
        return least_error(measure, span, form, float(number or CLIPPED))
    return least_lost(points, span, form)


def percentile(points: Points, span: Span, percent: float) -> Span:
    """The middle share of the numbers."""
    order = np.argsort(points[0], kind="stable")
    x, filled = points[0][order], np.cumsum(points[1][order])
    rest = (1 - percent / 100) / 2 * filled[-1]
    low, high = x[np.searchsorted(filled, [rest, filled[-1] - rest]).clip(0, len(x) - 1)]
    return max(span[0], min(low, 0.0)), min(span[1], max(high, 0.0))


def least_error(measure: Measure, span: Span, form: Format, clipped: float = CLIPPED) -> Span:
    """The ends drawn in, one after the other, to where rounding and clipping cost least together."""
    low, high = span
    for _ in range(2):
        high = _least([(low, high * f) for f in SHRINK], measure, form, clipped)[1]
        low = _least([(low * f, high) for f in SHRINK], measure, form, clipped)[0]
    return low, high


def _least(spans: list[Span], measure: Measure, form: Format, clipped: float) -> Span:
    storages = [qparams_for(*s, form) for s in spans]
    return spans[int(np.argmin(measure(storages, clipped)))]


def least_lost(points: Points, span: Span, form: Format) -> Span:
    """Both ends drawn in alike, to where the stored distribution tells least from the true one (Kullback-Leibler)."""
    spans = [(span[0] * f, span[1] * f) for f in SHRINK]
    levels = form.qmax - form.qmin + 1
    return spans[int(np.argmin([_lost(points, s, levels) for s in spans]))]


def _lost(points: Points, span: Span, levels: int) -> float:
    """Inside a step all numbers become alike; what lies outside is taken for the outermost."""
    filled = _filled(points, np.linspace(*span, levels * FINE + 1))
    inside = np.diff(filled).reshape(levels, FINE)
    true = inside.copy()
    true[0, 0] += filled[0]
    true[-1, -1] += 1 - filled[-1]
    used = inside > 0
    even = used * (inside.sum(1) / np.maximum(used.sum(1), 1))[:, None]
    seen = true > 0
    return float((true[seen] * np.log(true[seen] / np.maximum(even[seen], TINY))).sum())


def _filled(points: Points, edges: np.ndarray) -> np.ndarray:
    """The share of the numbers below each edge, as if they lay evenly between those that stand for them."""
    order = np.argsort(points[0], kind="stable")
    below = np.cumsum(points[1][order])
    return np.interp(edges, points[0][order], below / below[-1], left=0.0, right=1.0)
