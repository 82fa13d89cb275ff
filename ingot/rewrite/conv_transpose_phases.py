"""conv_transpose2d(x, w) with strides s -> conv2d(x, w by phase), whose phases of each channel are interleaved

An output at position s * m + r reads the taps s * j + r of the kernel only: that is a plain convolution for each phase
r. Dilated kernels are written out with zeros. The same products are added, and a phase has weight scales of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def conv_transpose_by_phases(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,), groups: int = 1, dilation: Sequence[int] = (1,),
) -> Tensor:  # fmt: skip
    if x.dim() == 3:
        one = x.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation
        return conv_transpose_by_phases(*one).squeeze(0)
    stride, padding, output_padding, dilation = (_each(a, 2) for a in (stride, padding, output_padding, dilation))
    kernel = _phases(_written_out(weight, dilation), stride, groups)
    reach = [n - 1 for n in kernel.shape[2:]]
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + o
        for n, s, p, d, k, o in zip(
            x.shape[2:], stride, padding, dilation, weight.shape[2:], output_padding, strict=True
        )
    ]
    y = aten.conv2d(_padded(x, reach, stride, padding, size), kernel, _for_each_phase(bias, stride), groups=groups)
    return _cropped(_interleaved(y, stride), padding, size)


def _each(numbers: Sequence[int], rank: int) -> list[int]:
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def _written_out(weight: Tensor, dilation: list[int]) -> Tensor:
    """Zeros between the taps of a dilated kernel."""
    for axis, d in enumerate(dilation, 2):
        taps = torch.zeros(*weight.shape[: axis + 1], d - 1, *weight.shape[axis + 1 :], dtype=weight.dtype)
        apart = torch.cat([weight.unsqueeze(axis + 1), taps], axis + 1).flatten(axis, axis + 1)
        weight = apart.narrow(axis, 0, apart.shape[axis] - d + 1)
    return weight


def _phases(weight: Tensor, stride: list[int], groups: int) -> Tensor:
    """(in, out / groups, kernel) -> (out * phases, in / groups, taps of a phase, last first)"""
    ends = [n for k, s in zip(weight.shape[:1:-1], stride[::-1], strict=True) for n in (0, -k % s)]
    channels, out = weight.shape[:2]
    split = aten.constant_pad_nd(weight, ends).reshape(groups, channels // groups, out, *_split(weight, stride))
    spatial = range(3, split.dim(), 2)
    by_phase = split.permute(0, 2, *(a + 1 for a in spatial), 1, *spatial)
    taps = by_phase.shape[-len(stride) :]
    return by_phase.flip([-1 - i for i in range(len(stride))]).reshape(-1, channels // groups, *taps)


def _split(weight: Tensor, stride: list[int]) -> list[int]:
    return [n for k, s in zip(weight.shape[2:], stride, strict=True) for n in (math.ceil(k / s), s)]


def _for_each_phase(bias: Tensor | None, stride: list[int]) -> Tensor | None:
    return None if bias is None else bias.unsqueeze(1).expand(-1, math.prod(stride)).reshape(-1)


def _padded(x: Tensor, reach: list[int], stride: list[int], padding: list[int], size: list[int]) -> Tensor:
    """As far as the kernel reaches, and further at the end where padding of the output needs it."""
    missing = [
        max(0, math.ceil((p + out) / s) - (n + r))
        for n, r, s, p, out in zip(x.shape[2:], reach, stride, padding, size, strict=True)
    ]
    ends = [n for r, m in zip(reach[::-1], missing[::-1], strict=True) for n in (r, r + m)]
    return aten.constant_pad_nd(x, ends) if any(ends) else x


def _interleaved(y: Tensor, stride: list[int]) -> Tensor:
    """(n, channels * phases, size) -> (n, channels, size * stride)"""
    if max(stride) == 1:
        return y
    n, size, rank = y.shape[0], y.shape[2:], len(stride)
    apart = y.reshape(n, -1, *stride, *size)
    order = [a for i in range(rank) for a in (2 + rank + i, 2 + i)]
    return apart.permute(0, 1, *order).reshape(n, -1, *(k * s for k, s in zip(size, stride, strict=True)))


def _cropped(y: Tensor, padding: list[int], size: list[int]) -> Tensor:
    for axis, (start, length) in enumerate(zip(padding, size, strict=True), 2):
        y = y.narrow(axis, start, length)
    return y


RULE = Decomposition("conv-transpose-by-phases", {aten.conv_transpose2d.input: conv_transpose_by_phases})
