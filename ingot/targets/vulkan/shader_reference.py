"""Fused ops of the Vulkan backend as its shaders compute them: their packed weights have no counterpart in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _unpacked(packed: Tensor) -> Tensor:
    """int4 weights: two in a byte, the first in the low bits, with an offset of 8."""
    both = torch.stack([packed & 15, packed >> 4], -1).to(torch.int8) - 8
    return both.reshape(packed.shape[0], -1)


def _weight(packed: Tensor, scales: Tensor, group: int, width: int) -> Tensor:
    """The float weight, rows x width. Scales are groups x rows; rows may be padded."""
    codes = _unpacked(packed)[:, :width]
    by_row = scales.t()[: codes.shape[0]].float()
    return codes.view(codes.shape[0], -1, group).float().mul_(by_row[:, :, None]).view(codes.shape)


def linear_q4gsw(x: Tensor, packed: Tensor, scales: Tensor, group: int, bias: Tensor | None = None) -> Tensor:
    made = x @ _weight(packed, scales, group, x.shape[-1]).t()
    return made if bias is None else made + bias[: made.shape[-1]]


def linear_dq8ca_q4gsw(
    x: Tensor, scale: Tensor, zero: Tensor, packed: Tensor, sums: Tensor, scales: Tensor, group: int,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Dynamic int8 activations per token. `sums`: group sums of the weights, which correct for the zero point."""
    by_token = (*x.shape[:-1], 1)
    step, middle = scale.reshape(by_token), zero.reshape(by_token).float()
    codes = (x * (1 / step)).round().add(middle).clamp(-128, 127)
    rows = packed.shape[0]
    weights = _unpacked(packed)[:, : x.shape[-1]].view(rows, -1, group).float()
    products = torch.einsum("...gk,ngk->...gn", codes.view(*x.shape[:-1], -1, group), weights)
    products = products - middle[..., None] * sums[:, :rows].float()
    made = step * (products * scales[:, :rows].float()).sum(-2)
    return made if bias is None else made + bias[:rows]


def embedding_q4gsw(packed: Tensor, scales: Tensor, group: int, indices: Tensor, linear: bool = False) -> Tensor:
    """`linear`: packed as the weight of a linear; else the first of two is in the high bits."""
    rows = packed[indices.long().reshape(-1)]
    codes = _unpacked(rows if linear else (rows >> 4) | (rows << 4)).float()
    by_row = scales[indices.long().reshape(-1)].float().reshape(len(rows), -1, 1)
    return (codes.view(len(rows), -1, group) * by_row).view(*indices.shape, -1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def choose_qparams_affine(x: Tensor, _mapping: str, _block: Any, _dtype: None, low: int, high: int, *_: Any) -> Any:
    """Asymmetric, one scale for each row: the only form with a shader. The range includes zero."""
    least, most = x.amin(-1).clamp_max(0), x.amax(-1).clamp_min(0)
    scale = ((most - least) / (high - low)).clamp_min(torch.finfo(torch.float32).eps)
    return scale, (low - (least / scale).round()).clamp(low, high)


def select_as_symint(x: Tensor, dim: int, index: int) -> int:
    """An element as a Python number, for ops with a symbolic argument."""
    return int(x.select(dim, index))


FUSED = (linear_q4gsw, linear_dq8ca_q4gsw, embedding_q4gsw, rms_norm, select_as_symint)
KERNELS: dict[str, Any] = {
    **{f"et_vk.{f.__name__}.default": f for f in FUSED},
    "torchao.choose_qparams_affine.default": choose_qparams_affine,
}
