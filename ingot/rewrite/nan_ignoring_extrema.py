"""fmax(x, y) -> maximum(where(x == x, x, y), where(y == y, y, x)), and fmin: a NaN loses against a number"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def ignoring_nan(extremum: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def chosen(x: Tensor, y: Tensor) -> Tensor:
        if not torch.promote_types(x.dtype, y.dtype).is_floating_point:
            return extremum(x, y)
        return extremum(torch.where(x == x, x, y), torch.where(y == y, y, x))

    return chosen


RULE = Decomposition(
    "fmax-as-maximum",
    {aten.fmax.default: ignoring_nan(torch.maximum), aten.fmin.default: ignoring_nan(torch.minimum)},
)
