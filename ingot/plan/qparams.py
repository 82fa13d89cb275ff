"""From a range of real numbers to integers: zero is exact, scales are float32 numbers as every runtime has them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ingot.plan.model import QParams
from ingot.targets.base import Format

# For a range that is only zero any scale is right; this one leaves biases at the accumulator their precision.
OF_NOTHING = 1 / 128
# A scale must survive products with others as a normal float32 number.
FINEST = 2.0**-60


def qparams_for(low: float, high: float, form: Format) -> QParams:
    """One scale for a whole tensor whose values lie in low…high."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return QParams(form.dtype, OF_NOTHING, 0, form.qmin, form.qmax)
    if form.symmetric:
        scale = max(-low / form.qmax, high / form.qmax, FINEST)
        return QParams(form.dtype, scale, 0, form.qmin, form.qmax)
    scale = max((high - low) / (form.qmax - form.qmin), FINEST)
    zero = round(form.qmin - low / scale)
    return QParams(form.dtype, scale, min(max(zero, form.qmin), form.qmax), form.qmin, form.qmax)


def weight_qparams(weight: torch.Tensor, form: Format, axis: int | None, finest: torch.Tensor | None = None) -> QParams:
    """Symmetric, one scale per slice along `axis` or one for all; no channel finer than `finest` allows its bias."""
    w = weight.detach().double()
    most = w.abs().amax().reshape(1) if axis is None else w.transpose(0, axis).reshape(w.shape[axis], -1).abs().amax(1)
    scale = torch.where(most > 0, most / form.qmax, OF_NOTHING).clamp(min=FINEST)
    if finest is not None:
        scale = torch.maximum(scale, finest.amax() if axis is None else finest)
    if axis is None:
        return QParams(form.dtype, float(scale[0]), 0, form.qmin, form.qmax)
    return QParams(form.dtype, tuple(scale.tolist()), (0,) * len(scale), form.qmin, form.qmax, axis)


def with_factors(weight: QParams, x: QParams, out: QParams, bits: int) -> QParams:
    """The same, each scale a little larger, so that what the backend multiplies sums by has no more than these bits."""
    scales = weight.scale if isinstance(weight.scale, tuple) else (weight.scale,)
    ratio = x.scale / out.scale  # type: ignore[operator]
    moved = tuple(_rounded_up(s * ratio, bits) / ratio for s in scales)
    return replace(weight, scale=moved if isinstance(weight.scale, tuple) else moved[0])


def _rounded_up(number: float, bits: int) -> float:
    """To a mantissa of so many bits; one that float32 has only missed from above stays."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.ceil(mantissa * 2**bits - 2**-6), exponent - bits)


def rounded_down(number: float, bits: int) -> float:
    """The same, and one that was only missed from below stays."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(math.floor(mantissa * 2**bits + 2**-6), exponent - bits)


def finest_for(bias: torch.Tensor | None, x: QParams) -> torch.Tensor | None:
    """The finest weight scale at which each bias still fits into int32, with room for the products it is added to."""
    assert isinstance(x.scale, float)
    return None if bias is None else bias.detach().double().abs() / (x.scale * 2**30)


def bias_qparams(x: QParams, weight: QParams) -> QParams:
    """Accumulators count in steps of input scale times weight scale; a bias that is added to them must too."""
    low, high = -(2**31), 2**31 - 1
    assert isinstance(x.scale, float)
    if isinstance(weight.scale, tuple):
        scales = tuple(x.scale * w for w in weight.scale)
        return QParams("int32", scales, (0,) * len(scales), low, high, 0)
    return QParams("int32", x.scale * weight.scale, 0, low, high)
