"""Weights that somebody rounded before: found by trying, and taken over as they are.

A model that torchao quantized arrives as float numbers that all lie on grids of a few steps (its dequantize is folded
like any constant); so does a checkpoint of four-bit codes. Rounding them again by other scales would only add noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.weight_only.gptq import Rounded, held, limits

NEAR = 0.02  # of a step: what bfloat16 leaves of a number on the grid; by chance no group of many comes so near


def recovered(weight: Tensor, bits: int, group: int) -> Rounded | None:
    """Codes and scales whose products are these weights; None where there are none."""
    rows, width = weight.shape
    parts = weight.view(rows, width // group, group)
    if _scales(parts[:1], bits) is None:  # quick, and enough for almost every weight
        return None
    scales = _scales(parts, bits)
    if scales is None:
        return None
    codes = (parts / scales[..., None]).round().clamp(*limits(bits))
    return Rounded(codes.view(rows, width).to(torch.int8), held(scales, bits))


def _scales(parts: Tensor, bits: int) -> Tensor | None:
    """The largest number of a group is some code: the first that makes all the others codes too."""
    most, (low, high) = parts.abs().amax(-1), limits(bits)
    found = torch.where(most > 0, torch.nan, 1.0)
    for code in range(1, -low + 1):
        if not found.isnan().any():
            return found
        steps = parts * code / most[..., None]
        fits = ((steps - steps.round()).abs() < NEAR).all(-1) & (steps.amax(-1) < high + 0.5)
        found = torch.where(found.isnan() & fits, most / code, found)
    return None if found.isnan().any() else found
