"""Qparams from a value range: zero is exact, scales are float32."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ingot.plan.plan_data import QParams
from ingot.targets.base import Format

# Any scale represents an all-zero tensor (zero_ranges.py may find a better one). This one keeps the bias scale
# (input scale times weight scale) fine enough.
ZERO_RANGE_SCALE = 1 / 128
# Products of scales must stay normal float32 numbers.
MIN_SCALE = 2.0**-60
# The accumulator is int32. A bias may take half of it: the rest is headroom for the products it is added to.
BIAS_LIMIT = 2**30
INT32_RANGE = -(2**31), 2**31 - 1


def qparams_for(low: float, high: float, form: Format) -> QParams:
    """Per-tensor qparams that cover low … high, and zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return QParams(form.dtype, ZERO_RANGE_SCALE, 0, form.qmin, form.qmax)
    if form.symmetric:
        scale = max(-low / form.qmax, high / form.qmax, MIN_SCALE)
        return QParams(form.dtype, scale, 0, form.qmin, form.qmax)
    scale = max((high - low) / (form.qmax - form.qmin), MIN_SCALE)
    zero = round(form.qmin - low / scale)
    return QParams(form.dtype, scale, min(max(zero, form.qmin), form.qmax), form.qmin, form.qmax)


def weight_qparams(
    weight: torch.Tensor, form: Format, axis: int | None, min_scale: torch.Tensor | None = None
) -> QParams:
    """Symmetric from max |w|: per channel along `axis`, or per tensor for None. No scale is below `min_scale`."""
    w = weight.detach().double()
    largest = (
        w.abs().amax().reshape(1) if axis is None else w.transpose(0, axis).reshape(w.shape[axis], -1).abs().amax(1)
    )
    scale = torch.where(largest > 0, largest / form.qmax, ZERO_RANGE_SCALE).clamp(min=MIN_SCALE)
    if min_scale is not None:
        scale = torch.maximum(scale, min_scale.amax() if axis is None else min_scale)
    if axis is None:
        return QParams(form.dtype, float(scale[0]), 0, form.qmin, form.qmax)
    return QParams(form.dtype, tuple(scale.tolist()), (0,) * len(scale), form.qmin, form.qmax, axis)


def with_multiplier_bits(weight: QParams, x: QParams, out: QParams, bits: int) -> QParams:
    """Weight scales rounded up so that each requantize multiplier (x * weight / out) has a mantissa of `bits` bits."""
    scales = weight.scale if isinstance(weight.scale, tuple) else (weight.scale,)
    ratio = x.scale / out.scale  # type: ignore[operator]
    rounded = tuple(_round_up_to_bits(s * ratio, bits) / ratio for s in scales)
    return replace(weight, scale=rounded if isinstance(weight.scale, tuple) else rounded[0])


def _round_up_to_bits(number: float, bits: int) -> float:
    """Round the mantissa up to `bits` bits. The tolerance absorbs the rounding of scales to float32."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.ceil(mantissa * 2**bits - 2**-6), exponent - bits)


def round_down_to_bits(number: float, bits: int) -> float:
    """Round the mantissa down to `bits` bits, with the same tolerance."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.floor(mantissa * 2**bits + 2**-6), exponent - bits)


def min_weight_scale(bias: torch.Tensor | None, x: QParams) -> torch.Tensor | None:
    """The smallest weight scale, per channel, at which the bias fits into the int32 accumulator with headroom."""
    assert isinstance(x.scale, float)
    return None if bias is None else bias.detach().double().abs() / (x.scale * BIAS_LIMIT)


def bias_qparams(x: QParams, weight: QParams) -> QParams:
    """int32 at input scale times weight scale: the scale of the accumulator that the bias is added to."""
    assert isinstance(x.scale, float)
    if isinstance(weight.scale, tuple):
        scales = tuple(x.scale * w for w in weight.scale)
        return QParams("int32", scales, (0,) * len(scales), *INT32_RANGE, 0)
    return QParams("int32", x.scale * weight.scale, 0, *INT32_RANGE)
