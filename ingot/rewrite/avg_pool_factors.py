"""avg_pool2d(x, k, ceil_mode, count_include_pad, divisor) -> avg_pool2d(pad(x), k) * (k0 * k1 / divisor of each window)

XNNPACK's pool counts real elements only and rounds sizes down. All other divisors are known from the shapes: where they
differ from window to window the factor is a constant image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten
Pair = Sequence[int]


def avg_pool_with_factors(
    x: Tensor, kernel: Pair, stride: Pair = (), padding: Pair = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor: int | None = None,
) -> Tensor:  # fmt: skip
    pads, given = _pair(padding), _pair(kernel)
    # A window beyond an image without padding is the one window there, and averages the image.
    window = [w if p else min(w, size) for w, p, size in zip(given, pads, x.shape[-2:], strict=True)]
    steps = [min(s, w) if w < g else s for s, w, g in zip(_pair(stride or kernel), window, given, strict=True)]
    rows, columns = (_windows(x.shape[d - 2], window[d], steps[d], pads[d], ceil_mode) for d in (0, 1))
    amounts = [pads[1], columns.end_pad, pads[0], rows.end_pad]
    sums = aten.avg_pool2d(_padded(x, amounts), window, steps)
    area = window[0] * window[1]
    if divisor is not None:
        return sums * (area / divisor)
    counts = [w.counts(count_include_pad) for w in (rows, columns)]
    if all(set(c) == {w} for c, w in zip(counts, window, strict=True)):
        return sums
    height, width = (w.counted(count_include_pad, x.dtype) for w in (rows, columns))
    return sums * (float(area) / (height[:, None] * width))


def _pair(values: Pair) -> list[int]:
    return [*values] if len(values) == 2 else [values[0]] * 2


@dataclass(frozen=True)
class _Windows:
    """The windows along one dimension of `size` elements."""

    count: int
    width: int
    step: int
    size: int
    padding: int

    def counts(self, padded: bool) -> list[int]:
        """Elements that the mean of each window divides by."""
        low, high = self._bounds(padded)
        return [min(s + self.width, high) - max(s, low) for s in range(-self.padding, self.end, self.step)]

    def counted(self, padded: bool, dtype: torch.dtype) -> Tensor:
        """The same as a tensor, made by ops that a trace records."""
        low, high = self._bounds(padded)
        starts = torch.arange(self.count) * self.step - self.padding
        return ((starts + self.width).clamp(max=high) - starts.clamp(min=low)).to(dtype)

    def _bounds(self, padded: bool) -> tuple[int, int]:
        return (-self.padding, self.size + self.padding) if padded else (0, self.size)

    @property
    def end(self) -> int:
        """Where a window after the last one would start."""
        return self.count * self.step - self.padding

    @property
    def end_pad(self) -> int:
        return max(self.end - self.step + self.width - self.size, 0)


def _windows(size: int, width: int, step: int, padding: int, ceil_mode: bool) -> _Windows:
    """As torch counts them: with ceil_mode a window that starts in the padding on the right does not count."""
    room = size + 2 * padding - width
    count = (-(-room // step) if ceil_mode else room // step) + 1
    if ceil_mode and (count - 1) * step >= size + padding:
        count -= 1
    return _Windows(count, width, step, size, padding)


def _padded(x: Tensor, amounts: list[int]) -> Tensor:
    return aten.constant_pad_nd(x, amounts) if any(amounts) else x


RULE = Decomposition("avg-pool-with-factors", {aten.avg_pool2d.default: avg_pool_with_factors})
