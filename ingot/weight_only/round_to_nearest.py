"""Round to nearest (RTN): each weight to the nearest code; scales by min-max or by a clipping search."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.plan.weight_rounding import best_clip_ratios
from ingot.weight_only.rounded_weight import RoundedWeight, as_stored, code_range, codes_for


def round_minmax(weight: Tensor, bits: int, group: int) -> RoundedWeight:
    """The largest magnitude of a group sets its scale: nothing is clipped."""
    rows, width = weight.shape
    groups = weight.float().view(rows, width // group, group)
    scales = as_stored(groups.abs().amax(-1).clamp_min(1e-8) / code_range(bits)[1], bits)
    return RoundedWeight(codes_for(groups, scales, bits).view(rows, width).to(torch.int8), scales)


def round_to_nearest(weight: Tensor, bits: int, group: int, hessian: Tensor | None = None) -> RoundedWeight:
    """Scales minimize the square error of a group, weighted by the diagonal of the Hessian where there is one."""
    rows, width = weight.shape
    groups = weight.float().view(rows, width // group, group)
    importance = torch.ones(width) if hessian is None else hessian.diagonal().clamp_min(1e-12)
    scales = search_scales(groups, bits, importance.view(1, width // group, group), -1)
    return RoundedWeight(codes_for(groups, scales, bits).view(rows, width).to(torch.int8), scales)


def search_scales(groups: Tensor, bits: int, importance: Tensor, dim: int) -> Tensor:
    """The clipping ratio with the least weighted square error, per group along `dim`; int8 uses min-max."""
    minmax = groups.abs().amax(dim).clamp_min_(1e-8) / code_range(bits)[1]
    if bits == 8:
        return as_stored(minmax, bits)
    return as_stored(minmax * best_clip_ratios(groups, minmax, code_range(bits), importance, dim), bits)
