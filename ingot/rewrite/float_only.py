"""What decompositions of elementwise functions share: they are arithmetic on floats, and decline integers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined

aten = torch.ops.aten
STEEP = 1e38  # times any normal float is at least one
LARGEST = torch.finfo(torch.float32).max


def on_floats(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Integers have other rounding, and float64 more digits than the polynomials here."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Tensor:
        values = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if any(v.dtype != torch.float32 for v in values):
            raise Declined
        return function(*args, **kwargs)

    return checked


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return aten.clamp(x * STEEP, -1.0, 1.0)


def is_above(x: Tensor, bound: float) -> Tensor:
    """1 where x > bound, else 0."""
    return aten.clamp((x - bound) * STEEP, 0.0, 1.0)


def is_zero(x: Tensor) -> Tensor:
    """1 where x is zero, else 0."""
    return -aten.clamp(aten.abs(x) * STEEP, 0.0, 1.0) + 1.0
