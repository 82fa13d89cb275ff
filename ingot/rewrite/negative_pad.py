"""constant_pad_nd(x, [-1, 1]) -> constant_pad_nd(x[1:], [0, 1]): what is taken away is a slice"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def pad_after_crop(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    for k in range(len(pads) // 2):
        dim, (before, after) = x.dim() - 1 - k, pads[2 * k : 2 * k + 2]
        first, end = max(-before, 0), x.shape[dim] - max(-after, 0)
        x = x if (first, end) == (0, x.shape[dim]) else x.narrow(dim, first, end - first)
    added = [max(p, 0) for p in pads]
    return aten.constant_pad_nd(x, added, value) if any(added) else x


RULE = Decomposition("negative-pad-as-slice", {aten.constant_pad_nd.default: pad_after_crop})
