"""A weight as integer codes and scales, the result of every rounding method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoundedWeight:
    """codes * scales, per group: codes are rows x width, scales are rows x groups. Symmetric: zero points are 0."""

    codes: Tensor
    scales: Tensor

    @cached_property
    def zero_points(self) -> Tensor:
        """Zeros in the shape of the scales; one tensor, shared by all methods of the program."""
        return torch.zeros_like(self.scales)

    @cached_property
    def packed_int4(self) -> Tensor:
        """Two codes a byte, offset by 8, the first in the upper half; one tensor, shared by all methods."""
        shifted = (self.codes + 8).to(torch.uint8)
        return (shifted[:, ::2] << 4) | shifted[:, 1::2]

    @property
    def dequantized(self) -> Tensor:
        rows, width = self.codes.shape
        return (self.codes.float().view(rows, self.scales.shape[1], -1) * self.scales[:, :, None]).view(rows, width)


def code_range(bits: int) -> tuple[int, int]:
    """The smallest and the largest signed code."""
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def as_stored(scales: Tensor, bits: int) -> Tensor:
    """Scales at the precision of the kernels: bfloat16 for 4 bits, float32 for 8."""
    return scales.to(torch.bfloat16).float() if bits < 8 else scales


def codes_for(groups: Tensor, scales: Tensor, bits: int) -> Tensor:
    """The nearest code of each weight, clipped. `groups` is rows x groups x group size."""
    return (groups / scales[..., None]).round().clamp(*code_range(bits))
