"""bucketize(x, boundaries, right) -> sum(boundaries < x), or sum(boundaries <= x) if right"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def count_boundaries(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The boundaries are sorted, so the place among them is how many lie below."""
    below = aten.le(boundaries, x.unsqueeze(-1)) if right else aten.lt(boundaries, x.unsqueeze(-1))
    return aten.sum(below, [-1], False, dtype=torch.int32 if out_int32 else torch.int64)


RULE = Decomposition("bucketize-as-count", {aten.bucketize.Tensor: count_boundaries})
