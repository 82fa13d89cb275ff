"""log1p(x) -> log(u) - ((u - 1) - x) / u with u = 1 + x; expm1(x) -> tanh(x / 2) * (exp(x) + 1): exact for small x too

log2, log10, exp2 by log and exp; logaddexp(x, y) -> max(x, y) + log1p(exp(-|x - y|)); erfc(x) -> 1 - erf(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition
from ingot.rewrite.float_only import on_floats
from ingot.rewrite.powers import erf

aten = torch.ops.aten


def log1p(x: Tensor) -> Tensor:
    whole = x + 1.0
    return aten.log(whole) - aten.div((whole - 1.0) - x, whole)


def expm1(x: Tensor) -> Tensor:
    return aten.tanh(x * 0.5) * (aten.exp(x) + 1.0)


def log2(x: Tensor) -> Tensor:
    return aten.log(x) * (1 / math.log(2))


def log10(x: Tensor) -> Tensor:
    return aten.log(x) * (1 / math.log(10))


def exp2(x: Tensor) -> Tensor:
    return aten.exp(x * math.log(2))


def erfc(x: Tensor) -> Tensor:
    return -erf(x) + 1.0


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    return aten.maximum(x, y) + log1p(aten.exp(-aten.abs(x - y)))


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    inside = x if eps is None else aten.clamp(x, eps, 1.0 - eps)
    return aten.log(inside) - aten.log(-inside + 1.0)


_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    aten.log1p.default: log1p,
    aten.expm1.default: expm1,
    aten.log2.default: log2,
    aten.log10.default: log10,
    aten.exp2.default: exp2,
    aten.special_exp2.default: exp2,
    aten.erfc.default: erfc,
    aten.logaddexp.default: logaddexp,
    aten.logit.default: logit,
}
RULE = Decomposition(
    "logarithms-as-log",
    {op: on_floats(function) for op, function in _FUNCTIONS.items()},
    "part of a logarithm: it needs float",
)
