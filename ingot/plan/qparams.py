"""From a range of real numbers to integers: zero is exact, scales are float32 numbers as every runtime has them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ingot.plan.model import Storage
from ingot.targets.base import Format

# The finest step that survives a product with another scale in float32.
FINEST = 2.0**-24


def storage_for(low: float, high: float, form: Format) -> Storage:
    """One scale for a whole tensor whose values lie in low…high."""
    low, high = min(low, 0.0), max(high, 0.0)
    if form.symmetric:
        scale = max(-low / form.qmax, high / form.qmax, FINEST)
        return Storage(form.dtype, scale, 0, form.qmin, form.qmax)
    scale = max((high - low) / (form.qmax - form.qmin), FINEST)
    zero = round(form.qmin - low / scale)
    return Storage(form.dtype, scale, min(max(zero, form.qmin), form.qmax), form.qmin, form.qmax)


def storage_for_weight(weight: torch.Tensor, form: Format, axis: int | None) -> Storage:
    """Symmetric, one scale per slice along `axis` or one for all; an all-zero channel gets the finest scale."""
    w = weight.detach().float()
    if axis is None:
        return storage_for(-float(w.abs().max()), float(w.abs().max()), form)
    most = w.transpose(0, axis).reshape(w.shape[axis], -1).abs().amax(1)
    scales = tuple(max(float(m) / form.qmax, FINEST) for m in most)
    return Storage(form.dtype, scales, (0,) * len(scales), form.qmin, form.qmax, axis)


def storage_for_bias(x: Storage, weight: Storage) -> Storage:
    """Accumulators count in steps of input scale times weight scale; a bias that is added to them must too."""
    low, high = -(2**31), 2**31 - 1
    assert isinstance(x.scale, float)
    if isinstance(weight.scale, tuple):
        scales = tuple(x.scale * w for w in weight.scale)
        return Storage("int32", scales, (0,) * len(scales), low, high, 0)
    return Storage("int32", x.scale * weight.scale, 0, low, high)


def hull(ranges: Iterable[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)
