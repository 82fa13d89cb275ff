"""max_pool3d(x, k) -> max_pool2d(max_pool2d(x over height and width), [k0, 1] over depth); avg_pool3d alike

A window is a product of intervals, padding and ceil_mode included, so pooling one dimension after the other gives the
same maximum, and the same mean: its divisor is a product as well. Local response norm pools over channels so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.rewrite.conv3d import triple
from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def max_pool3d_as_2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    def pool(x: Tensor, *windows: Any) -> Tensor:
        return aten.max_pool2d(x, *windows, ceil_mode)

    return _pool_twice(pool, x, triple(kernel), triple(stride or kernel), triple(padding), triple(dilation))


def avg_pool3d_as_2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    def pool(x: Tensor, kernel: Any, stride: Any, padding: Any) -> Tensor:
        return aten.avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)

    divisor = None if divisor_override is None else 1
    y = _pool_twice(pool, x, triple(kernel), triple(stride or kernel), triple(padding))
    return y if divisor_override is None else y / divisor_override


def _pool_twice(pool: Callable[..., Tensor], x: Tensor, *windows: list[int]) -> Tensor:
    """Channels and depths side by side for height and width, then height and width in one for depth."""
    *lead, depth, h, w = x.shape
    if not _is_identity([a[1:] for a in windows]):
        x = pool(x.reshape(1, -1, h, w), *[a[1:] for a in windows])
        x = x.reshape(*lead, depth, *x.shape[2:])
    if _is_identity([a[:1] for a in windows]):
        return x
    *_, h, w = x.shape
    neutral = ([1], [1], [0], [1])  # of kernel, stride, padding, dilation
    y = pool(x.reshape(1, -1, depth, h * w), *[[a[0], *one] for a, one in zip(windows, neutral, strict=False)])
    return y.reshape(*lead, y.shape[2], h, w)


def _is_identity(windows: list[list[int]]) -> bool:
    kernel, stride, padding, *_ = windows
    return all(k == s == 1 and not p for k, s, p in zip(kernel, stride, padding, strict=True))


RULE = Decomposition(
    "pool3d-as-2d", {aten.max_pool3d.default: max_pool3d_as_2d, aten.avg_pool3d.default: avg_pool3d_as_2d}
)
