"""prelu(x, w) -> relu(x) - w * relu(-x), with w along the channels"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def prelu_as_relu(x: Tensor, weight: Tensor) -> Tensor:
    weight = weight.reshape(-1, *[1] * (x.dim() - 2)) if x.dim() > 1 else weight.reshape([1] * x.dim())
    return aten.relu(x) - weight * aten.relu(-x)


RULE = Decomposition("prelu-as-relu", {aten.prelu.default: prelu_as_relu})
