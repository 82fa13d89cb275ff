"""upsample_linear1d(x), upsample_bicubic2d(x), upsample_trilinear3d(x) -> x times a constant matrix for each dimension

Also upsample_bilinear2d and upsample_bicubic2d with antialias.

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
_WIDTH = 2  # of the other dimensions: torch's kernels with antialias are wrong for a width of one


def by_matrices(
    x: Tensor, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None, *, op: Any
) -> Tensor:
    rank = x.dim() - 2
    for dim, size in enumerate(x.shape[2:]):
        sizes = None if output_size is None else [output_size[dim] if d == dim else _WIDTH for d in range(rank)]
        scales = None if scale_factors is None else [s if d == dim else 1.0 for d, s in enumerate(scale_factors)]
        made = op(_units(size, dim, rank, x.dtype), sizes, align_corners, scales)
        x = _times(x, dim + 2, made.movedim(dim + 2, -1).reshape(size, -1, made.shape[dim + 2])[:, 0])
    return x


def _units(size: int, dim: int, rank: int, dtype: torch.dtype) -> Tensor:
    """The unit vectors along a dimension, as channels."""
    apart = torch.eye(size, dtype=dtype).reshape(1, size, *(size if d == dim else 1 for d in range(rank)))
    return apart.repeat(1, 1, *(1 if d == dim else _WIDTH for d in range(rank)))


def _times(x: Tensor, dim: int, rows: Tensor) -> Tensor:
    order = [*(d for d in range(x.dim()) if d != dim), dim]
    y = aten.linear(x.permute(order), rows.transpose(0, 1))
    return y.permute([order.index(d) for d in range(x.dim())])


_OPS = (
    aten.upsample_linear1d.vec, aten.upsample_bicubic2d.vec, aten.upsample_trilinear3d.vec,
    aten._upsample_bilinear2d_aa.vec, aten._upsample_bicubic2d_aa.vec,
)  # fmt: skip
RULE = Decomposition("resample-as-matmul", {op: partial(by_matrices, op=op) for op in _OPS})
