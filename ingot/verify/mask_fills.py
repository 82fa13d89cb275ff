"""Mask fill values in an output (-1e9 in the place of a score) are left out of its SQNR: they would be all its signal.

A fill is one large number, several times, by itself of another magnitude than all others. The ones of a softmax that is
sure beside its zeros are no fills. Where the artefact has another number there, nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ingot.plan.mask_fills import MIN_FILL_MAGNITUDE

ALONE = 1e4  # times the largest other element
ALIKE = 1e-3  # relative: a fill in integers is rounded

Hide = Callable[[Sequence[Tensor]], list[Tensor]]


def hidden_fills(reference: Sequence[Tensor], *others: Sequence[Tensor]) -> Hide | None:
    """A function that makes fills zero in the same output of any program; None where there are none."""
    fill = _fill(reference)
    if fill is None:
        return None
    places = [t == fill for t in reference]
    if any(len(side) != len(places) for side in others):
        return None
    if not all(_has(fill, t, p) for side in others for t, p in zip(side, places, strict=True)):
        return None
    return lambda side: [t.masked_fill(p, 0.0) for t, p in zip(side, places, strict=False)]


def _fill(reference: Sequence[Tensor]) -> float | None:
    values = torch.cat([t.detach().reshape(-1) for t in reference])
    values = values[torch.isfinite(values)]
    if not values.is_floating_point() or values.numel() < 3:
        return None
    largest = values[values.abs().argmax()]
    others = values[values != largest]
    magnitude = float(largest.abs())
    alone = others.numel() > 0 and magnitude > max(MIN_FILL_MAGNITUDE, ALONE * float(others.abs().max()))
    return float(largest) if alone and bool(others.any()) and values.numel() - others.numel() > 1 else None


def _has(fill: float, side: Tensor, places: Tensor) -> bool:
    return side.shape == places.shape and bool(((side[places] - fill).abs() <= ALIKE * abs(fill)).all())
