"""atan2(y, x) -> a polynomial in min(|x|, |y|) / max(|x|, |y|), turned into its quadrant: error 1e-7

atan, asin and acos by it; tan(x) -> sin(x) / cos(x); sinh(x) -> tanh(x) * cosh(x), cosh(x) -> (exp(x) + exp(-x)) / 2;
asinh, acosh and atanh by logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition
from ingot.rewrite.float_only import STEEP, is_above, on_floats, sign
from ingot.rewrite.logarithms import log1p
from ingot.rewrite.powers import reciprocal

aten = torch.ops.aten
# atan(t) / t as a polynomial in t * t between 0 and 1: interpolated at Chebyshev's points.
_ATAN = (
    0.00276628348, -0.01573124904, 0.04213762345, -0.07456854814, 0.1061837063, -0.1419779779, 0.1999187203,
    -0.3333303671, 0.9999999818,
)  # fmt: skip
_TINY = 1e-37  # atan2(0, 0) is 0


def _up_to_one(t: Tensor) -> Tensor:
    """atan for 0 <= t <= 1."""
    square = t * t
    total = square * _ATAN[0] + _ATAN[1]
    for factor in _ATAN[2:]:
        total = total * square + factor
    return total * t


def _mirrored(angle: Tensor, where: Tensor, whole: float) -> Tensor:
    """whole - angle where `where` is 1, the angle where it is 0."""
    return angle + where * (angle * -2.0 + whole)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    wide, high = aten.abs(x), aten.abs(y)
    small, large = aten.minimum(wide, high), aten.maximum(wide, high)
    angle = _mirrored(_up_to_one(aten.div(small, large + _TINY)), is_above(high - wide, 0.0), math.pi / 2)
    return _mirrored(angle, is_above(-x, 0.0), math.pi) * aten.clamp(y * STEEP + 1.0, -1.0, 1.0)


def atan(x: Tensor) -> Tensor:
    size = aten.abs(x)
    above = is_above(size, 1.0)
    t = aten.div(aten.clamp(size, 0.0, 1.0), aten.clamp(size, 1.0, math.inf))
    return _mirrored(_up_to_one(t), above, math.pi / 2) * sign(x)


def _other_leg(x: Tensor) -> Tensor:
    """sqrt(1 - x * x)"""
    return aten.sqrt((-x + 1.0) * (x + 1.0))


def asin(x: Tensor) -> Tensor:
    return atan2(x, _other_leg(x))


def acos(x: Tensor) -> Tensor:
    return atan2(_other_leg(x), x)


def tan(x: Tensor) -> Tensor:
    return aten.div(aten.sin(x), aten.cos(x))


def cosh(x: Tensor) -> Tensor:
    return (aten.exp(x) + aten.exp(-x)) * 0.5


def sinh(x: Tensor) -> Tensor:
    return aten.tanh(x) * cosh(x)


def asinh(x: Tensor) -> Tensor:
    """log1p keeps the digits of small numbers."""
    size = aten.abs(x)
    return sign(x) * log1p(size + size * size * reciprocal(aten.sqrt(size * size + 1.0) + 1.0))


def acosh(x: Tensor) -> Tensor:
    return aten.log(x + aten.sqrt((x - 1.0) * (x + 1.0)))


def atanh(x: Tensor) -> Tensor:
    return (log1p(x) - log1p(-x)) * 0.5


_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    aten.atan2.default: atan2,
    aten.atan.default: atan,
    aten.asin.default: asin,
    aten.acos.default: acos,
    aten.tan.default: tan,
    aten.cosh.default: cosh,
    aten.sinh.default: sinh,
    aten.asinh.default: asinh,
    aten.acosh.default: acosh,
    aten.atanh.default: atanh,
}
RULE = Decomposition(
    "trigonometry-as-polynomials",
    {op: on_floats(function) for op, function in _FUNCTIONS.items()},
    "part of a trigonometric function: it needs float",
)
