"""conv_transpose1d(x, w) -> conv_transpose2d of both with a width of one"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def conv_transpose1d_as_2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sequence[int] = (1,), padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,), groups: int = 1, dilation: Sequence[int] = (1,),
) -> Tensor:  # fmt: skip
    """x may be one example without a batch."""
    options = [*stride, 1], [*padding, 0], [*output_padding, 0], groups, [*dilation, 1]
    batch = x.reshape(*[1] * (3 - x.dim()), *x.shape, 1)
    y = aten.conv_transpose2d.input(batch, weight.unsqueeze(-1), bias, *options)
    return y.reshape(y.shape[3 - x.dim() : -1])


RULE = Decomposition("conv-transpose1d-as-2d", {aten.conv_transpose1d.default: conv_transpose1d_as_2d})
