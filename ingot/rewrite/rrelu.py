"""rrelu(x, lower, upper) -> leaky_relu(x, (lower + upper) / 2), outside of training"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten


def mean_slope(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Tensor:
    if training:
        raise Declined
    return aten.leaky_relu(x, (lower + upper) / 2)


RULE = Decomposition("rrelu-as-leaky-relu", {aten.rrelu.default: mean_slope})
