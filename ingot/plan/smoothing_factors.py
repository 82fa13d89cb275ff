"""Factors that move outlier channels from activations into weights (SmoothQuant, Xiao et al. 2022), and what they save.

f(x, w) = f(x / s, w * s): x has one step for all channels (or for each token), w one for each row. A factor is chosen
between the peak of its channel and that of the weights that read it. Weight schemes and static plans share this.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_NOISE_RATIO = 0.8  # expected noise with factors over noise without: above this they are not worth their trouble
SMALLEST_PEAK = 1e-5


def balanced_factors(x_peak: Tensor, weight_peak: Tensor, share: float = 0.5) -> Tensor:
    """x_peak^share / weight_peak^(1 - share) by channel; 0.5 is SmoothQuant's alpha."""
    return x_peak.clamp_min(SMALLEST_PEAK) ** share / weight_peak.clamp_min(SMALLEST_PEAK) ** (1 - share)


def rounding_noise(
    weight: Tensor, x_step: float, x_power: Tensor, largest_code: int, importance: Tensor | None = None
) -> float:
    """Noise power of a product, summed over its rows, from rounding its input at a step and its weight by rows.

    `weight` is rows x anything, with its factors; `x_power` is the mean square of what it reads, in one row or in each.
    `importance` weighs the rows.
    """
    rows = weight.flatten(1)
    row_steps = rows.abs().amax(1) / largest_code
    power = x_power.expand(-1, *weight.shape[1:]).flatten(1).sum(1)
    each = (x_step**2 * rows.square().sum(1) + row_steps.square() * power) / 12
    return float(each.sum() if importance is None else torch.dot(each, importance))
