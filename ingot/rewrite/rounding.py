"""trunc(x) -> floor(relu(x)) - floor(relu(-x)); round(x) -> floor(x), and 1 more from the half on (to even at the half)

sign(x) -> clamp(x * 1e38, -1, 1); remainder(x, y) -> x - y * floor(x / y); fmod(x, y) -> x - y * trunc(x / y)
signbit(x) -> x < 0 or 1 / x < 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.float_only import STEEP, is_above, is_zero, on_floats, sign

aten = torch.ops.aten


def truncated(x: Tensor) -> Tensor:
    return aten.floor(aten.relu(x)) - aten.floor(aten.relu(-x))


def rounded(x: Tensor) -> Tensor:
    """The fraction is exact, so that its comparison with a half is."""
    low = aten.floor(x)
    past = x - low - 0.5
    odd = low - aten.floor(low * 0.5) * 2.0
    return low + is_above(past, 0.0) + is_zero(past) * odd


def fraction(x: Tensor) -> Tensor:
    return x - truncated(x)


def _divided(x: Tensor, y: Tensor | float) -> Tensor:
    """The same quotient as torch's: a product with 1 / y may fall on the other side of a whole number."""
    return aten.div(x, y if isinstance(y, Tensor) else torch.full([1] * x.dim(), float(y)))


def remainder(x: Tensor, y: Tensor | float) -> Tensor:
    return x - aten.floor(_divided(x, y)) * y


def fmod(x: Tensor, y: Tensor | float) -> Tensor:
    return x - truncated(_divided(x, y)) * y


def divided(x: Tensor, y: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        raise Declined
    return (aten.floor if rounding_mode == "floor" else truncated)(_divided(x, y))


def floor_divided(x: Tensor, y: Tensor | float) -> Tensor:
    return aten.floor(_divided(x, y))


def heaviside(x: Tensor, at_zero: Tensor) -> Tensor:
    return is_above(x, 0.0) + is_zero(x) * at_zero


def copysign(x: Tensor, like: Tensor) -> Tensor:
    """The sign of zero is plus: no arithmetic tells the two zeros apart."""
    return aten.abs(x) * aten.clamp(like * STEEP + 1.0, -1.0, 1.0)


def signbit(x: Tensor) -> Tensor:
    """The reciprocal of a negative zero is negative."""
    below = aten.lt(x, 0)
    return aten.logical_or(below, aten.lt(aten.reciprocal(x), 0)) if x.dtype.is_floating_point else below


_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    aten.sign.default: sign,
    aten.sgn.default: sign,
    aten.trunc.default: truncated,
    aten.fix.default: truncated,
    aten.round.default: rounded,
    aten.frac.default: fraction,
    aten.remainder.Scalar: remainder,
    aten.remainder.Tensor: remainder,
    aten.fmod.Scalar: fmod,
    aten.fmod.Tensor: fmod,
    aten.div.Tensor_mode: divided,
    aten.div.Scalar_mode: divided,
    aten.floor_divide.default: floor_divided,
    aten.heaviside.default: heaviside,
    aten.copysign.Tensor: copysign,
}
RULE = Decomposition(
    "rounding-as-floor",
    {op: on_floats(function) for op, function in _FUNCTIONS.items()} | {aten.signbit.default: signbit},
    "part of a rounding function: it needs float",
)
