"""conv2d(x), max_pool2d(x), avg_pool2d(x), linear(x) of one example without a batch -> the same with a batch of one

Also conv1d and the transposed ones. XNNPACK's convolutions and pools need a batch dimension, and so do its linears that
quantize their input at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition

aten = torch.ops.aten


def with_a_batch(x: Tensor, *args: Any, op: Callable[..., Tensor], rank: int) -> Tensor:
    """`rank`: dimensions with a batch, at least."""
    if x.dim() >= rank:
        raise Declined
    y = op(x.reshape(1, *x.shape), *args)
    return y.reshape(y.shape[1:])


_RANKS = {
    aten.conv1d.default: 3,
    aten.conv2d.default: 4,
    aten.conv_transpose1d.default: 3,
    aten.conv_transpose2d.input: 4,
    aten.max_pool2d.default: 4,
    aten.avg_pool2d.default: 4,
    aten.linear.default: 2,
}
RULE = Decomposition("batch-of-one", {op: partial(with_a_batch, op=op, rank=rank) for op, rank in _RANKS.items()})
