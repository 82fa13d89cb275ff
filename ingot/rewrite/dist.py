"""dist(x, y, p) -> linalg_vector_norm(x - y, p)"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def distance(x: Tensor, y: Tensor, order: float = 2.0) -> Tensor:
    return aten.linalg_vector_norm(x - y, order)


RULE = Decomposition("dist-as-norm", {aten.dist.default: distance})
