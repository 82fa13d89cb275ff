"""mish(x) -> x * t / (t + 2) with t = e * (e + 2), e = exp(x); log_sigmoid(x) -> min(x, 0) - log1p(exp(-|x|))

celu, selu and softplus with a factor by exp and log; hardshrink, softshrink and threshold by clamps;
lerp(x, y, w) -> x + w * (y - x); addcdiv(x, y, z) -> x + v * y / z; clamp(x, low, high) -> min(max(x, low), high).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.float_only import LARGEST, is_above, is_zero, on_floats
from ingot.rewrite.logarithms import expm1, log1p

aten = torch.ops.aten
_SATURATED = 20.0  # tanh(softplus(x)) is 1 from here on


def mish(x: Tensor) -> Tensor:
    e = aten.exp(aten.clamp(x, -LARGEST, _SATURATED))
    t = e * (e + 2.0)
    return x * aten.div(t, t + 2.0)


def log_sigmoid(x: Tensor) -> Tensor:
    return -(aten.relu(-x) + log1p(aten.exp(-aten.abs(x))))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if beta <= 0 or threshold < _SATURATED:  # below, torch's own result has a step
        raise Declined
    return aten.relu(x) + log1p(aten.exp(-aten.abs(x) * beta)) * (1.0 / beta)


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    return aten.relu(x) * scale + expm1(-aten.relu(-x) * input_scale) * (alpha * scale)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(x, alpha, 1.0, 1.0 / alpha)


def selu(x: Tensor) -> Tensor:
    return elu(x, 1.6732632423543772, 1.0507009873554805)


def hardshrink(x: Tensor, bound: float = 0.5) -> Tensor:
    return x * is_above(aten.abs(x), bound)


def softshrink(x: Tensor, bound: float = 0.5) -> Tensor:
    return x - aten.clamp(x, -bound, bound)


def threshold(x: Tensor, bound: float, value: float) -> Tensor:
    """Infinities become finite: times zero they are NaN."""
    above = is_above(x, bound)
    return aten.clamp(x, -LARGEST, LARGEST) * above + (-above + 1.0) * value


def sinc(x: Tensor) -> Tensor:
    """1 at zero: both parts of the quotient are 1 there."""
    angle, at_zero = x * torch.pi, is_zero(x)
    return aten.div(aten.sin(angle) + at_zero, angle + at_zero)


def lerp(x: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
    return x + (y - x) * weight


def addcdiv(x: Tensor, y: Tensor, z: Tensor, *, value: float = 1.0) -> Tensor:
    ratio = aten.div(y, z)
    return x + (ratio if value == 1 else ratio * value)


def clamped(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    raised = x if low is None else aten.maximum(x, low)
    return raised if high is None else aten.minimum(raised, high)


_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    aten.mish.default: mish,
    aten.log_sigmoid.default: log_sigmoid,
    aten.softplus.default: softplus,
    aten.elu.default: elu,
    aten.celu.default: celu,
    aten.selu.default: selu,
    aten.hardshrink.default: hardshrink,
    aten.softshrink.default: softshrink,
    aten.threshold.default: threshold,
    aten.sinc.default: sinc,
    aten.lerp.Scalar: lerp,
    aten.lerp.Tensor: lerp,
    aten.addcdiv.default: addcdiv,
    aten.clamp.Tensor: clamped,
    aten.clamp_min.Tensor: lambda x, low: clamped(x, low),
    aten.clamp_max.Tensor: lambda x, high: clamped(x, None, high),
}
RULE = Decomposition(
    "activations-as-arithmetic",
    {op: on_floats(function) for op, function in _FUNCTIONS.items()},
    "part of an activation: its intermediate ranges are not recorded",
)
