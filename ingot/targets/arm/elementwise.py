"""Functions that Arm has no lookup table for, by those that it has

softplus(x) -> relu(x) + log1p(exp(-|x|)); log_sigmoid(x) -> -softplus(-x); mish(x) -> x * tanh(softplus(x));
softshrink(x) -> x - clamp(x); log2 and exp2 by log and exp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
_SATURATED = 20.0  # softplus(x) is x from here on; below, torch's own result would have a step


def softplus_by_tables(x: Tensor, beta: float = 1.0, threshold: float = _SATURATED) -> Tensor:
    if beta <= 0 or threshold < _SATURATED:
        raise Declined
    tail = aten.log1p(aten.exp(aten.abs(x) * -beta))
    return aten.relu(x) + (tail if beta == 1 else tail * (1.0 / beta))


def log_sigmoid_by_tables(x: Tensor) -> Tensor:
    return -softplus_by_tables(-x)


def mish_by_tables(x: Tensor) -> Tensor:
    return x * aten.tanh(softplus_by_tables(x))


def softshrink_by_tables(x: Tensor, bound: float = 0.5) -> Tensor:
    return x - aten.clamp(x, -bound, bound)


def log2_by_tables(x: Tensor) -> Tensor:
    return aten.log(x) * (1 / math.log(2))


def exp2_by_tables(x: Tensor) -> Tensor:
    return aten.exp(x * math.log(2))


_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    aten.softplus.default: softplus_by_tables,
    aten.log_sigmoid.default: log_sigmoid_by_tables,
    aten.mish.default: mish_by_tables,
    aten.softshrink.default: softshrink_by_tables,
    aten.log2.default: log2_by_tables,
    aten.exp2.default: exp2_by_tables,
    aten.special_exp2.default: exp2_by_tables,
}
RULE = Decomposition("elementwise-by-known-tables", _FUNCTIONS)
