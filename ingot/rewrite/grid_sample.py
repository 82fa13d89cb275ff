"""grid_sample(x, grid) -> bmm(x, rows * columns), or sum(bmm(columns, x) * rows) where x has few channels

rows and columns are the weights of all pixels of an axis at each point: relu(1 - |position - pixel|). Those of the two
next to the point are not zero. Where a point lies is data, so a gather would need the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.float_only import on_floats

aten = torch.ops.aten
BILINEAR, NEAREST = 0, 1
ZEROS, BORDER = 0, 1  # and reflection
# Pixels times points grow quickly: beyond a few milliseconds of products, or 32 MB between them, the host is better.
_MOST_PRODUCTS, _MOST_BETWEEN = 1 << 26, 1 << 23


def sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    if x.dim() != 4 or mode not in (BILINEAR, NEAREST) or not x.numel() or not grid.numel():
        raise Declined
    n, channels, height, width = x.shape
    points = grid.shape[1] * grid.shape[2]
    products, between = n * channels * height * width * points, n * height * min(channels, width) * points
    if products > _MOST_PRODUCTS or between > _MOST_BETWEEN:
        raise Declined
    place = grid.reshape(n, points, 2)
    columns = _weights(place[..., :1], width, mode, padding, align)
    rows = _weights(place[..., 1:], height, mode, padding, align)
    made = _by_axis(x, rows, columns) if channels < width else _by_pixel(x, rows, columns)
    return made.mT.reshape(n, channels, *grid.shape[1:3])


def _by_pixel(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[n, points, channels], from the weight of each pixel."""
    return torch.bmm((rows.unsqueeze(3) * columns.unsqueeze(2)).flatten(2), x.flatten(2).mT)


def _by_axis(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The same, without the weights of pixels: they would be more numbers than these products."""
    n, channels, height, _ = x.shape
    across = torch.bmm(columns, x.permute(0, 3, 1, 2).flatten(2)).reshape(n, -1, channels, height)
    return aten.sum.dim_IntList(across * rows.unsqueeze(2), [3])


def _weights(place: Tensor, size: int, mode: int, padding: int, align: bool) -> Tensor:
    """[n, points, size]: how much each pixel of one axis counts at each point."""
    half = (size - 1) / 2
    at = _inside(place * (half if align else size / 2) + half, size, padding, align)
    at = aten.round(at) if mode == NEAREST else at
    pixels = torch.arange(size, dtype=place.dtype)
    return aten.relu(1.0 - aten.abs(at - pixels))


def _inside(at: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """Outside of an image padded with zeros every hat is zero already."""
    if padding == ZEROS:
        return at
    return aten.clamp(at if padding == BORDER else _reflected(at, size, align), 0.0, size - 1.0)


def _reflected(at: Tensor, size: int, align: bool) -> Tensor:
    """Back and forth between the centres of the outer pixels, or between their edges."""
    low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
    if not span:
        return at * 0.0
    away = at - low
    period = away - aten.floor(away / (2 * span)) * (2 * span)
    return low + span - aten.abs(period - span)


RULE = Decomposition(
    "grid-sample-as-products",
    {aten.grid_sampler.default: on_floats(sampled), aten.grid_sampler_2d.default: on_floats(sampled)},
    "part of a sampler: positions need float",
)
