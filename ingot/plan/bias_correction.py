"""Bias correction (Nagel et al., Data-Free Quantization, 2019): the bias compensates each channel's mean error.

Rounding a weight, or clipping, shifts the mean of a channel. Here the shift is measured on calibration batches instead
of derived from batch norm statistics. simulated_quantization.py measures it, estimator_search.py decides whether to use
it, quantize/pt2e.py adds it to the bias.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of

ChannelMeans = dict[str, Tensor]  # op with a bias -> mean of each channel: samples x channels


def bias_correction(expected: Tensor, actual: Tensor) -> Tensor:
    """The mean of expected - actual per channel, shrunk by its uncertainty; both are samples x channels."""
    missing = expected - actual
    mean, variance_of_mean = missing.mean(0), missing.var(0) / len(missing) if len(missing) > 1 else torch.inf
    shrunk = mean * (1 - variance_of_mean / mean.square().clamp_min(1e-30)).clamp_min(0)
    return torch.nan_to_num(shrunk, nan=0.0, posinf=0.0, neginf=0.0)  # squares of huge errors overflow float32


def apply_correction(node: Node, y: Tensor, correction: Tensor) -> Tensor:
    """The result of the op with the correction in its bias."""
    axis = _channel_axis(node, y)
    return y + correction.reshape([-1 if d == axis else 1 for d in range(y.dim())])


def has_bias(node: Node) -> bool:
    """The op has a weight and a constant bias."""
    if node.op != "call_function" or weight_axis(node) is None or len(operands(node)) < 3:
        return False
    return constant_of(operands(node)[2]) is not None


def channel_means(node: Node, y: Tensor) -> Tensor:
    """The mean of each channel of an op's result, for each sample."""
    last = y.movedim(_channel_axis(node, y), -1)
    samples = last if last.dim() > 1 else last[None]
    return samples.flatten(1, -2).mean(1) if samples.dim() > 2 else samples  # -1 for a size would refuse no samples


def _channel_axis(node: Node, y: Tensor) -> int:
    """Of the result: after the batch for a convolution, last for a linear."""
    weight = constant_of(operands(node)[1])
    return y.dim() - (2 if weight is None else weight.dim()) + 1
