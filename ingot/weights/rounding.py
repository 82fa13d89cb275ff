"""From a weight to integers and scales: plain rounding, or with what the layer reads (GPTQ)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DAMPING = 0.01  # of the mean of the diagonal: inputs that hardly vary must not steer
CLIPS = torch.linspace(0.6, 1.0, 21)  # shares of the largest number that a scale may be set by


@dataclass(frozen=True)
class Rounded:
    """codes * scales, group by group: codes are rows x width, scales rows x groups."""

    codes: Tensor
    scales: Tensor

    @property
    def real(self) -> Tensor:
        rows, width = self.codes.shape
        return (self.codes.float().view(rows, self.scales.shape[1], -1) * self.scales[:, :, None]).view(rows, width)


def limits(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def minmax(weight: Tensor, bits: int, group: int) -> Rounded:
    """A group's scale by its largest number."""
    rows, width = weight.shape
    parts = weight.float().view(rows, width // group, group)
    scales = held(parts.abs().amax(-1).clamp_min(1e-8) / limits(bits)[1], bits)
    return Rounded(_codes(parts, scales, bits).view(rows, width).to(torch.int8), scales)


def hqq(weight: Tensor, bits: int, group: int) -> Rounded:
    """Scales and codes by turns, each the best for the other, as torchao has it."""
    from torchao.quantization.quant_primitives import _choose_qparams_and_quantize_scale_only_hqq as solve

    rows, width = weight.shape
    scales = held(solve(weight.float(), [1, group], *limits(bits))[1].view(rows, -1), bits)
    parts = weight.float().view(rows, width // group, group)
    return Rounded(_codes(parts, scales, bits).view(rows, width).to(torch.int8), scales)


def nearest(weight: Tensor, bits: int, group: int, moments: Tensor | None = None) -> Rounded:
    """Each number to the nearest step; a group's scale by least square error, weighed by what it is multiplied by."""
    rows, width = weight.shape
    parts = weight.float().view(rows, width // group, group)
    weighing = torch.ones(width) if moments is None else moments.diagonal().clamp_min(1e-12)
    scales = _scales(parts, bits, weighing.view(1, width // group, group))
    return Rounded(_codes(parts, scales, bits).view(rows, width).to(torch.int8), scales)


def _scales(parts: Tensor, bits: int, weighing: Tensor) -> Tensor:
    """Tried: several shares of the range, each with both ends; symmetric codes have one number more below."""
    most = parts.abs().amax(-1).clamp_min(1e-8)
    best, least = torch.empty_like(most), torch.full_like(most, torch.inf)
    for share in CLIPS if bits < 8 else CLIPS[-1:]:
        scale = most * share / limits(bits)[1]
        error = ((_codes(parts, scale, bits) * scale[..., None] - parts).square() * weighing).sum(-1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return held(best, bits)


def held(scales: Tensor, bits: int) -> Tensor:
    """As the kernels hold them."""
    return scales.to(torch.bfloat16).float() if bits < 8 else scales


def _codes(parts: Tensor, scales: Tensor, bits: int) -> Tensor:
    return (parts / scales[..., None]).round().clamp(*limits(bits))


def gptq(weight: Tensor, bits: int, group: int, moments: Tensor, block: int = 128) -> Rounded:
    """Column after column, the error of one made good by those after it, as they vary together (Frantar et al., 2022).

    `moments` is the mean of x x^T over what the layer reads. Scales are set group by group when it is reached.
    """
    rows, width = weight.shape
    left, factor = weight.float().clone(), _factor(moments)
    codes, scales = torch.zeros(rows, width, dtype=torch.int8), torch.empty(rows, width // group)
    weighing = 1 / factor.diagonal().square()
    for start in range(0, width, block):
        end = min(start + block, width)
        errors = torch.zeros(rows, end - start)
        for i in range(start, end):
            if i % group == 0:
                part = left[:, i : i + group].unsqueeze(1)
                scales[:, i // group] = _scales(part, bits, weighing[i : i + group].view(1, 1, -1))[:, 0]
            scale = scales[:, i // group]
            code = (left[:, i] / scale).round().clamp(*limits(bits))
            codes[:, i] = code.to(torch.int8)
            errors[:, i - start] = (left[:, i] - code * scale) / factor[i, i]
            left[:, i + 1 : end] -= errors[:, i - start, None] * factor[i, i + 1 : end]
        left[:, end:] -= errors @ factor[start:end, end:]
    return Rounded(codes, scales)


def _factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse: row i says how an error in column i is made good by those after it."""
    damped = moments.double() + torch.eye(len(moments)) * DAMPING * moments.diagonal().mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True).float()
