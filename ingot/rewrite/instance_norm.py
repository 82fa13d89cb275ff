"""instance_norm(x) -> group_norm with a group for each channel"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten


def instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    if not use_input_stats:
        raise Declined
    return aten.group_norm(x, x.shape[1], weight, bias, eps)


RULE = Decomposition("instance-norm-as-group-norm", {aten.instance_norm.default: instance_norm})
