"""round(x, decimals=d) -> round(x * 10^d) / 10^d"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def round_to_decimals(x: Tensor, *, decimals: int) -> Tensor:
    """As torch computes it: a negative d divides first."""
    power = float(10 ** abs(decimals))
    return aten.round(x * power) / power if decimals >= 0 else aten.round(x / power) * power


RULE = Decomposition("round-decimals-as-round", {aten.round.decimals: round_to_decimals})
