"""bilinear(x, y, w, b) -> sum(linear(x, w') * y) + b"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def bilinear_as_linear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Output k is x @ weight[k] @ y: one linear gives x @ weight[k] for all k."""
    out, n, m = weight.shape
    rows = aten.linear(x, weight.permute(0, 2, 1).reshape(out * m, n)).reshape(*x.shape[:-1], out, m)
    total = aten.sum(rows * y.unsqueeze(-2), [-1])
    return total if bias is None else total + bias


RULE = Decomposition("bilinear-as-linear", {aten.bilinear.default: bilinear_as_linear})
