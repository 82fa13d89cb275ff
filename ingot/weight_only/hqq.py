"""HQQ (half-quadratic quantization, Badri & Shaji 2023): scales by alternating optimization, without data."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.weight_only.rounded_weight import RoundedWeight, as_stored, code_range, codes_for


def round_hqq(weight: Tensor, bits: int, group: int) -> RoundedWeight:
    """Scales from torchao's scale-only HQQ solver; codes are rounded again after the scales are cast for storage."""
    from torchao.quantization.quant_primitives import _choose_qparams_and_quantize_scale_only_hqq as solve

    rows, width = weight.shape
    scales = as_stored(solve(weight.float(), [1, group], *code_range(bits))[1].view(rows, -1), bits)
    groups = weight.float().view(rows, width // group, group)
    return RoundedWeight(codes_for(groups, scales, bits).view(rows, width).to(torch.int8), scales)
