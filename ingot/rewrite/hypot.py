"""hypot(x, y) -> sqrt(x * x + y * y)"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def hypotenuse(x: Tensor, y: Tensor) -> Tensor:
    return aten.sqrt(x * x + y * y)


RULE = Decomposition("hypot-as-sqrt", {aten.hypot.default: hypotenuse})
