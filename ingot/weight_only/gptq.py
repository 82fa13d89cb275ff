"""From a weight to integers and scales: plain rounding, or with what the layer reads (GPTQ)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

BLOCK = 32  # columns whose errors reach each other at once, and those after them by one product
DAMPING = 0.01  # of the mean of the diagonal: inputs that hardly vary must not steer
SHARES = (0.6, 0.68, 0.76, 0.84, 0.92, 1.0)  # of the largest number, that a scale may be set by
NEARBY = (-0.04, -0.02, 0.02, 0.04)  # and around the best of these


@dataclass(frozen=True)
class Rounded:
    """codes * scales, group by group: codes are rows x width, scales rows x groups."""

    codes: Tensor
    scales: Tensor

    @cached_property
    def zeros(self) -> Tensor:
        """Of the scales' shape, one for all methods that have this weight."""
        return torch.zeros_like(self.scales)

    @cached_property
    def packed(self) -> Tensor:
        """Two numbers of four bits a byte, the first in the upper half, counted from -8; one for all methods."""
        shifted = (self.codes + 8).to(torch.uint8)
        return (shifted[:, ::2] << 4) | shifted[:, 1::2]

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
    scales = _scales(parts, bits, weighing.view(1, width // group, group), -1)
    return Rounded(_codes(parts, scales, bits).view(rows, width).to(torch.int8), scales)


def _scales(parts: Tensor, bits: int, weighing: Tensor, dim: int) -> Tensor:
    """By least error, of several shares of the range; symmetric codes have one number more below."""
    whole = parts.abs().amax(dim).clamp_min_(1e-8) / limits(bits)[1]
    if bits == 8:
        return held(whole, bits)
    best, least = torch.ones_like(whole), torch.full_like(whole, torch.inf)
    for share in SHARES:
        best, least = _better(parts, whole, torch.full_like(best, share), bits, weighing, dim, best, least)
    middle = best
    for more in NEARBY:
        best, least = _better(parts, whole, (middle + more).clamp_max_(1.0), bits, weighing, dim, best, least)
    return held(whole * best, bits)


def _better(
    parts: Tensor, whole: Tensor, share: Tensor, bits: int, weighing: Tensor, dim: int, best: Tensor, least: Tensor
) -> tuple[Tensor, Tensor]:
    """The shares with less error, group by group, and that."""
    scale = (whole * share).unsqueeze(dim)
    made = (parts / scale).round_().clamp_(*limits(bits)).mul_(scale)
    error = made.sub_(parts).square_().mul_(weighing).sum(dim)
    return torch.where(error < least, share, best), torch.minimum(error, least)


def held(scales: Tensor, bits: int) -> Tensor:
    """As the kernels hold them."""
    return scales.to(torch.bfloat16).float() if bits < 8 else scales


def _codes(parts: Tensor, scales: Tensor, bits: int) -> Tensor:
    return (parts / scales[..., None]).round().clamp(*limits(bits))


def gptq(weight: Tensor, bits: int, group: int, moments: Tensor) -> Rounded:
    """Column after column, the error of one made good by those after it, as they vary together (Frantar et al., 2022).

    `moments` is the mean of x x^T over what the layer reads. Scales are set group by group when it is reached. Columns
    lie as rows here, so that each is one piece of memory.
    """
    rows, width = weight.shape
    columns, (feedback, weighing) = weight.float().T.contiguous(), _feedback(moments)
    lost, codes = torch.empty_like(columns), torch.empty(width, rows, dtype=torch.int8)
    scales = torch.empty(width // group, rows)
    block = group if group < width else BLOCK
    for start in range(0, width, block):
        here = slice(start, min(start + block, width))
        wanted = torch.addmm(columns[here], feedback[:start, here].T, lost[:start])
        if start % group == 0:
            part = columns if group == width else _expected(wanted, columns[here], feedback[here, here])
            scales[start // group] = _scales(part, bits, weighing[start : start + group, None], 0)
        _round_block(wanted, columns[here], feedback[here, here], scales[start // group], codes[here], lost[here], bits)
    return Rounded(codes.T.contiguous(), scales.T.contiguous())


def _expected(wanted: Tensor, columns: Tensor, feedback: Tensor) -> Tensor:
    """What the columns of a block will be when each is reached, were none of them rounded: scales are set by that."""
    return columns - torch.linalg.solve_triangular(feedback.T, columns - wanted, upper=False, unitriangular=True)


def _round_block(
    wanted: Tensor, columns: Tensor, feedback: Tensor, scale: Tensor, codes: Tensor, lost: Tensor, bits: int
) -> None:
    """Into `codes` and `lost`, what a column is off by then."""
    made = torch.empty_like(wanted)
    for i, (now, code, true, off) in enumerate(zip(*(t.unbind() for t in (wanted, made, columns, lost)), strict=True)):
        torch.div(now, scale, out=code).round_().clamp_(*limits(bits))
        torch.addcmul(true, code, scale, value=-1, out=off)
        wanted[i + 1 :].addr_(feedback[i, i + 1 :], off)
    codes.copy_(made)


def _feedback(moments: Tensor) -> tuple[Tensor, Tensor]:
    """How much of a column's error each one after it makes good, and what an error that is left in each costs.

    moments = V D V^T with ones on the diagonal of V and zeros below it: Cholesky of the matrix, mirrored.
    """
    mirrored = moments.flip(0, 1)
    mirrored.diagonal().add_(DAMPING * moments.diagonal().mean().clamp_min(1e-12))
    upper = torch.linalg.cholesky(mirrored).flip(0, 1)
    return upper / upper.diagonal(), upper.diagonal().square()
