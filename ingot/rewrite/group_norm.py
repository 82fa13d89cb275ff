"""group_norm(x, g, w, b) -> layer_norm(x as [n, g, rest]) as x, * w + b for each channel"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten
REASON = "part of a norm: its statistics need float"


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    flat = x.reshape(x.shape[0], groups, -1)
    y = aten.layer_norm(flat, [flat.shape[-1]], None, None, eps).reshape(x.shape)
    each = [1, x.shape[1], *[1] * (x.dim() - 2)]
    y = y if weight is None else y * weight.reshape(each)
    return y if bias is None else y + bias.reshape(each)


RULE = Decomposition("group-norm-as-layer-norm", {aten.group_norm.default: group_norm}, REASON)
