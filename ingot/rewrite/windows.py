"""unfold(x), im2col(x) -> convolution with one-hot kernels; col2im(x) -> transposed convolution with one-hot kernels"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten
Pair = Sequence[int]


def unfold_as_conv(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Each window of a dimension becomes a new last dimension."""
    if not x.is_floating_point() or not x.dim():
        raise Declined
    flat = x.movedim(dim, -1)
    kernels = torch.eye(size, dtype=x.dtype).reshape(size, 1, size)
    windows = aten.conv1d(flat.reshape(-1, 1, flat.shape[-1]), kernels, None, [step])
    return windows.mT.reshape(*flat.shape[:-1], -1, size).movedim(-2, dim % x.dim())


def im2col_as_conv(x: Tensor, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Tensor:
    if x.dim() != 4:
        raise Declined
    channels = x.shape[1]
    made = aten.conv2d(x, _one_hot(kernel, channels, x.dtype), None, stride, padding, dilation, channels)
    return made.reshape(x.shape[0], made.shape[1], -1)


def col2im_as_conv(x: Tensor, size: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Tensor:
    if x.dim() != 3:
        raise Declined
    counts = [_count(*each) for each in zip(size, kernel, dilation, padding, stride, strict=True)]
    ends = [_end(*each) for each in zip(size, counts, kernel, dilation, padding, stride, strict=True)]
    if any(not 0 <= e < max(s, d) for e, s, d in zip(ends, stride, dilation, strict=True)):
        raise Declined
    channels = x.shape[1] // (kernel[0] * kernel[1])
    weight = _one_hot(kernel, channels, x.dtype)
    return aten.conv_transpose2d(
        x.reshape(*x.shape[:2], *counts), weight, None, stride, padding, ends, channels, dilation
    )


def _count(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _end(size: int, count: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    """What the last window does not reach."""
    return size - ((count - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)


def _one_hot(kernel: Pair, channels: int, dtype: torch.dtype) -> Tensor:
    area = kernel[0] * kernel[1]
    return torch.eye(area, dtype=dtype).reshape(area, 1, *kernel).repeat(channels, 1, 1, 1)


RULE = Decomposition(
    "unfold-as-conv",
    {
        aten.unfold.default: unfold_as_conv,
        aten.im2col.default: im2col_as_conv,
        aten.col2im.default: col2im_as_conv,
    },
)
