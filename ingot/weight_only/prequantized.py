"""Prequantized weights: recover the codes and scales of a weight that was quantized before, without a new error.

A model that torchao quantized is captured with float weights on a grid of a few steps, because its dequantize is folded
as a constant; so is a checkpoint of four-bit codes. New scales would only add noise to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.weight_only.rounded_weight import RoundedWeight, as_stored, code_range

GRID_TOLERANCE = 0.02  # of a step: covers the rounding of bfloat16; a group of random weights never fits this well


def recover_codes(weight: Tensor, bits: int, group: int) -> RoundedWeight | None:
    """Codes and scales whose product is this weight; None where there are none."""
    rows, width = weight.shape
    groups = weight.view(rows, width // group, group)
    if _recover_scales(groups[:1], bits) is None:  # rejects almost every float weight by its first row
        return None
    scales = _recover_scales(groups, bits)
    if scales is None:
        return None
    codes = (groups / scales[..., None]).round().clamp(*code_range(bits))
    return RoundedWeight(codes.view(rows, width).to(torch.int8), as_stored(scales, bits))


def _recover_scales(groups: Tensor, bits: int) -> Tensor | None:
    """The peak of a group has some code: take the smallest code for which all other weights are codes too."""
    peak, (low, high) = groups.abs().amax(-1), code_range(bits)
    found = torch.where(peak > 0, torch.nan, 1.0)
    for code in range(1, -low + 1):
        if not found.isnan().any():
            return found
        steps = groups * code / peak[..., None]
        fits = ((steps - steps.round()).abs() < GRID_TOLERANCE).all(-1) & (steps.amax(-1) < high + 0.5)
        found = torch.where(found.isnan() & fits, peak / code, found)
    return None if found.isnan().any() else found
