"""conv_transpose3d(x, w) -> conv_transpose2d(cat(depth taps of spread(x), channels), w')

`spread` puts stride - 1 zeros between depths. Along depth a transposed convolution is then a convolution with the
flipped kernel; see conv3d.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.conv3d import depth_taps, depths_from_batch, pad_depth, triple
from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def conv_transpose3d_as_2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,), groups: int = 1, dilation: Sequence[int] = (1,),
) -> Tensor:  # fmt: skip
    if x.dim() == 4:
        one = conv_transpose3d_as_2d(x.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation)
        return one.squeeze(0)
    (s, *stride), (p, *padding), (d, *dilation), (o, *output_padding) = (
        triple(a) for a in (stride, padding, dilation, output_padding)
    )
    depth = weight.shape[2]
    reach = d * (depth - 1) - p
    taps = depth_taps(pad_depth(_spread_depths(x, s), reach, reach + o), depth, 1, d, groups)
    flat = _flat_weight(weight, groups)
    y = aten.conv_transpose2d(taps, flat, bias, stride, padding, output_padding, groups, dilation)
    return depths_from_batch(y, x.shape[0])


def _spread_depths(x: Tensor, stride: int) -> Tensor:
    """abc -> a00b00c, for a stride of three"""
    if stride == 1:
        return x
    n, c, depth, h, w = x.shape
    apart = aten.constant_pad_nd(x.reshape(n, c * depth, 1, h, w), [0, 0, 0, 0, 0, stride - 1], 0.0)
    return apart.reshape(n, c, depth * stride, h, w).narrow(2, 0, (depth - 1) * stride + 1)


def _flat_weight(weight: Tensor, groups: int) -> Tensor:
    """(in, out / groups, depth, kernel) -> (in * depth, out / groups, kernel), taps reversed, within each group"""
    channels, out_group, depth, *kernel = weight.shape
    split = weight.flip(2).reshape(groups, channels // groups, out_group, depth, *kernel)
    return split.permute(0, 3, 1, 2, 4, 5).reshape(channels * depth, out_group, *kernel)


RULE = Decomposition("conv-transpose3d-as-2d", {aten.conv_transpose3d.input: conv_transpose3d_as_2d})
