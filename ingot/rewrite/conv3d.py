"""conv3d(x, w) -> conv2d(cat(depth taps of x, channels), w'), with output depths as batches

Tap k of output depth d is x at depth d * stride + k * dilation. With the taps side by side as channels the sum over the
depth of the kernel is part of the sum over channels: one 2-d convolution, whose result is the value of the 3-d one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def conv3d_as_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), groups: int = 1,
) -> Tensor:  # fmt: skip
    if x.dim() == 4:
        return conv3d_as_conv2d(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    (s, *stride), (p, *padding), (d, *dilation) = (triple(a) for a in (stride, padding, dilation))
    out_channels, in_group, depth, *kernel = weight.shape
    taps = depth_taps(pad_depth(x, p, p), depth, s, d, groups)
    flat = weight.permute(0, 2, 1, 3, 4).reshape(out_channels, depth * in_group, *kernel)
    return depths_from_batch(aten.conv2d(taps, flat, bias, stride, padding, dilation, groups), x.shape[0])


def triple(given: Sequence[int]) -> list[int]:
    return list(given) * 3 if len(given) == 1 else list(given)


def pad_depth(x: Tensor, before: int, after: int) -> Tensor:
    """Zeros in front and behind along depth; less than none crops."""
    x = x.narrow(2, max(-before, 0), x.shape[2] - max(-before, 0) - max(-after, 0))
    before, after = max(before, 0), max(after, 0)
    return aten.constant_pad_nd(x, [0, 0, 0, 0, before, after], 0.0) if before or after else x


def depth_taps(x: Tensor, taps: int, stride: int, dilation: int, groups: int) -> Tensor:
    """(N, C, D, H, W) -> (N * output depths, C * taps, H, W). The taps are neighbours within each group."""
    n, c, depth, h, w = x.shape
    count = (depth - dilation * (taps - 1) - 1) // stride + 1
    x = x.permute(0, 2, 1, 3, 4)
    found = [aten.slice(x, 1, k * dilation, k * dilation + (count - 1) * stride + 1, stride) for k in range(taps)]
    parts = [f.reshape(n * count, groups, c // groups, h, w) for f in found]
    return (aten.cat(parts, 2) if taps > 1 else parts[0]).reshape(n * count, c * taps, h, w)


def depths_from_batch(y: Tensor, batch: int) -> Tensor:
    return y.reshape(batch, y.shape[0] // batch, *y.shape[1:]).permute(0, 2, 1, 3, 4)


RULE = Decomposition("conv3d-as-conv2d", {aten.conv3d.default: conv3d_as_conv2d})
