"""pow(x, n) -> products of x for whole n; sqrt, rsqrt and their powers for halves; exp(n * log(x)) otherwise

pow(n, x) -> exp(x * log(n)) for positive n

erf(x) -> sign(x) * (1 - (polynomial in t = 1 / (1 + p |x|)) * exp(-x * x)), Abramowitz and Stegun 7.1.26: error 1.5e-7
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
_LARGEST = 1024  # whole power that is a product: ten squarings
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_P = 0.3275911
_LARGE = 1e30  # times any float above 1e-30 is beyond 1


def power(x: Tensor, exponent: float) -> Tensor:
    if not x.is_floating_point():
        raise Declined
    twice, large = 2 * exponent, abs(exponent) > _LARGEST
    if large and exponent == int(exponent):
        raise Declined  # negative numbers have whole powers, and no logarithm
    if large or twice != int(twice):
        return aten.exp(aten.log(x) * float(exponent))  # of zero exp(-inf), of negative numbers NaN: as pow
    size = abs(exponent)
    root = aten.sqrt(x) if twice % 2 else None
    whole = _product(x, int(size)) if size >= 1 else None
    made = whole if root is None else root if whole is None else whole * root
    if made is None:
        return aten.ones_like(x)
    return made if exponent > 0 else reciprocal(made)


def power_of_number(number: float, exponent: Tensor) -> Tensor:
    if not exponent.is_floating_point() or not number > 0:
        raise Declined
    return aten.exp(exponent * math.log(number))


def reciprocal(x: Tensor) -> Tensor:
    """Backends divide tensors."""
    return aten.div(torch.ones([1] * x.dim(), dtype=x.dtype), x)


def _product(x: Tensor, times: int) -> Tensor:
    """By squaring."""
    half = x if times < 2 else _product(x, times // 2)
    return half if times < 2 else half * half if times % 2 == 0 else half * half * x


def erf(x: Tensor) -> Tensor:
    size = aten.abs(x)
    t = reciprocal(size * _ERF_P + 1.0)
    total = t * _ERF[0]
    for factor in _ERF[1:]:
        total = (total + factor) * t
    return aten.clamp(x * _LARGE, -1.0, 1.0) * (-(total * aten.exp(-(x * x))) + 1.0)


RULE = Decomposition(
    "power-as-products",
    {
        aten.pow.Tensor_Scalar: power,
        aten.pow.Scalar: power_of_number,
        aten.reciprocal.default: reciprocal,
        aten.erf.default: erf,
    },
    "part of a power or an error function: it needs float",
)
