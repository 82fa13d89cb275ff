"""upsample_bicubic2d(x), upsample_trilinear3d(x) -> x times a constant matrix along each dimension

Such a resampling is linear and treats each dimension alone. The matrix of a dimension is what torch's op makes of the
unit vectors along it, so sizes, scales and align_corners are the op's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def by_matrices(
    x: Tensor, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None, *, op: Any
) -> Tensor:
    for dim, size in enumerate(x.shape[2:]):
        units = torch.eye(size, dtype=x.dtype).reshape(1, size, *(size if d == dim else 1 for d in range(x.dim() - 2)))
        sizes = None if output_size is None else [output_size[dim] if d == dim else 1 for d in range(x.dim() - 2)]
        scales = None if scale_factors is None else [s if d == dim else 1.0 for d, s in enumerate(scale_factors)]
        x = _times(x, dim + 2, op(units, sizes, align_corners, scales).reshape(size, -1))
    return x


def _times(x: Tensor, dim: int, rows: Tensor) -> Tensor:
    order = [*(d for d in range(x.dim()) if d != dim), dim]
    y = aten.linear(x.permute(order), rows.transpose(0, 1))
    return y.permute([order.index(d) for d in range(x.dim())])


_OPS = (aten.upsample_bicubic2d.vec, aten.upsample_trilinear3d.vec)
RULE = Decomposition("resample-as-matmul", {op: partial(by_matrices, op=op) for op in _OPS})
