"""Range estimators: min-max, percentile, MSE, entropy (KL divergence), or the one of them with the least error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ingot.plan.noise_model import CLIPPING_WEIGHT, Distribution, quantization_errors
from ingot.plan.plan_data import QParams
from ingot.plan.qparams import qparams_for
from ingot.plan.value_ranges import ValueRange, with_zero
from ingot.targets.base import Format

ErrorFunction = Callable[[Sequence[QParams], float], np.ndarray]  # (candidates, clipping weight) -> their errors
CLIPPING_ESTIMATORS = ("percentile", "mse", "entropy")
SHRINK = np.array([1.0, 0.97, 0.93, 0.88, 0.82, 0.75, 0.67, 0.58, 0.5, 0.42, 0.34, 0.26, 0.2, 0.14, 0.1])
DEFAULT_PERCENTILE = 99.99
MAX_ERROR_RATIO = 0.98  # a clipped range must have less than this share of the min-max error: histograms are samples
MIN_PROBABILITY = 1e-9  # of values that the quantized distribution does not have
SUBBINS = 16  # per quantization level, for the entropy estimator


def estimate_qparams(
    distribution: Distribution,
    value_range: ValueRange,
    form: Format,
    estimator: str,
    errors: ErrorFunction | None = None,
) -> tuple[QParams, str]:
    """Qparams for values of this distribution and range; and the estimator that found them, in words."""
    errors = errors or partial(quantization_errors, distribution)
    value_range = with_zero(value_range)
    minmax = qparams_for(*value_range, form)
    if estimator == "minmax" or value_range[0] == value_range[1] or form.qmax - form.qmin > 1 << 10:
        return minmax, "min-max"  # int16 has resolution enough: clipping cannot pay
    if estimator != "auto":
        return qparams_for(*_estimate(estimator, distribution, value_range, form, errors), form), estimator
    return _least_error(distribution, value_range, form, minmax, errors)


def _least_error(
    distribution: Distribution, value_range: ValueRange, form: Format, minmax: QParams, errors: ErrorFunction
) -> tuple[QParams, str]:
    """The estimator with the least error at the consumers."""
    names = CLIPPING_ESTIMATORS
    candidates = [qparams_for(*_estimate(n, distribution, value_range, form, errors), form) for n in names]
    of_minmax, *found = errors([minmax, *candidates], CLIPPING_WEIGHT).tolist()
    best = min(range(len(names)), key=lambda i: found[i])
    if found[best] >= of_minmax * MAX_ERROR_RATIO:
        return minmax, "min-max (no narrower range has less error)"
    ratio, (low, high) = found[best] / of_minmax, value_range
    return candidates[best], f"{names[best]} ({ratio:.2f} times the error of min-max {low:.4g} … {high:.4g})"


def _estimate(
    estimator: str, distribution: Distribution, value_range: ValueRange, form: Format, errors: ErrorFunction
) -> ValueRange:
    name, _, number = estimator.partition(":")
    if name == "percentile":
        return _percentile_range(distribution, value_range, float(number or DEFAULT_PERCENTILE))
    if name == "mse":
        return _mse_range(errors, value_range, form, float(number or CLIPPING_WEIGHT))
    return _entropy_range(distribution, value_range, form)


def _percentile_range(distribution: Distribution, value_range: ValueRange, percent: float) -> ValueRange:
    """The central `percent` of the values."""
    order = np.argsort(distribution[0], kind="stable")
    x, cumulative = distribution[0][order], np.cumsum(distribution[1][order])
    tail = (1 - percent / 100) / 2 * cumulative[-1]
    low, high = x[np.searchsorted(cumulative, [tail, cumulative[-1] - tail]).clip(0, len(x) - 1)]
    return max(value_range[0], min(low, 0.0)), min(value_range[1], max(high, 0.0))


def _mse_range(
    errors: ErrorFunction, value_range: ValueRange, form: Format, clipping_weight: float = CLIPPING_WEIGHT
) -> ValueRange:
    """Coordinate descent over the two ends: the range with the least rounding and clipping error."""
    low, high = value_range
    for _ in range(2):
        high = _best_of([(low, high * f) for f in SHRINK], errors, form, clipping_weight)[1]
        low = _best_of([(low * f, high) for f in SHRINK], errors, form, clipping_weight)[0]
    return low, high


def _best_of(ranges: list[ValueRange], errors: ErrorFunction, form: Format, clipping_weight: float) -> ValueRange:
    candidates = [qparams_for(*r, form) for r in ranges]
    return ranges[int(np.argmin(errors(candidates, clipping_weight)))]


def _entropy_range(distribution: Distribution, value_range: ValueRange, form: Format) -> ValueRange:
    """Both ends shrunk alike: the range whose quantized distribution has the least KL divergence."""
    ranges = [(value_range[0] * f, value_range[1] * f) for f in SHRINK]
    levels = form.qmax - form.qmin + 1
    return ranges[int(np.argmin([_kl_divergence(distribution, r, levels) for r in ranges]))]


def _kl_divergence(distribution: Distribution, value_range: ValueRange, levels: int) -> float:
    """Quantization makes the values of a level equal and clips outliers into the outermost sub-bins."""
    cumulative = _cumulative(distribution, np.linspace(*value_range, levels * SUBBINS + 1))
    inside = np.diff(cumulative).reshape(levels, SUBBINS)
    true = inside.copy()
    true[0, 0] += cumulative[0]
    true[-1, -1] += 1 - cumulative[-1]
    used = inside > 0
    quantized = used * (inside.sum(1) / np.maximum(used.sum(1), 1))[:, None]
    seen = true > 0
    return float((true[seen] * np.log(true[seen] / np.maximum(quantized[seen], MIN_PROBABILITY))).sum())


def _cumulative(distribution: Distribution, edges: np.ndarray) -> np.ndarray:
    """The cumulative distribution at each edge, linear between the samples."""
    order = np.argsort(distribution[0], kind="stable")
    cumulative = np.cumsum(distribution[1][order])
    return np.interp(edges, distribution[0][order], cumulative / cumulative[-1], left=0.0, right=1.0)
