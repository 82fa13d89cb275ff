"""max_pool1d(x, k) -> max_pool2d(x with a width of one, [k, 1]); avg_pool1d alike

adaptive_avg_pool1d(x, n) -> adaptive_avg_pool2d(x with a width of one, [n, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def pool1d_as_2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *rest: Any,
    pool: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    """`rest`: dilation and ceil_mode of a maximum; ceil_mode and count_include_pad of an average."""
    more = [[*a, 1] if isinstance(a, (list, tuple)) else a for a in rest]
    lead = [1] * (3 - x.dim())
    y = pool(x.reshape(*lead, *x.shape, 1), [*kernel, 1], [*(stride or kernel), 1], [*padding, 0], *more)
    return y.reshape(*x.shape[:-1], y.shape[-2])


def adaptive_average(x: Tensor, size: Sequence[int]) -> Tensor:
    lead = [1] * (3 - x.dim())
    y = aten.adaptive_avg_pool2d(x.reshape(*lead, *x.shape, 1), [*size, 1])
    return y.reshape(*x.shape[:-1], y.shape[-2])


RULE = Decomposition(
    "pool1d-as-2d",
    {
        aten.max_pool1d.default: partial(pool1d_as_2d, pool=aten.max_pool2d),
        aten.avg_pool1d.default: partial(pool1d_as_2d, pool=aten.avg_pool2d),
        aten.adaptive_avg_pool1d.default: adaptive_average,
    },
)
