"""upsample_bilinear2d(x) -> linear along the width, then along the height, with a row of weights for each output"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from ingot.core.fx import has_symbols, value_of
from ingot.rewrite.decomposition import Decomposition

aten = torch.ops.aten


def factors_are_ratios(node: Node) -> bool:
    """Backends resize by the ratio of the sizes; torch by the factors where they are given, unless align_corners."""
    if len(node.args) < 4 or not node.args[3] or node.args[2]:
        return True
    x, _, _, factors = cast(tuple[Any, ...], node.args)
    before, after = value_of(x).shape[2:], value_of(node).shape[2:]
    if has_symbols(before) or has_symbols(after):
        return False
    return all(math.isclose(b * f, a) for b, f, a in zip(before, factors, after, strict=True))


def resized(
    x: Tensor, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None = None
) -> Tensor:
    before = x.shape[2:]
    after = list(size) if size else [int(n * f) for n, f in zip(before, factors or (), strict=True)]
    given = [1 / f for f in factors] if factors else [n / m for n, m in zip(before, after, strict=True)]
    steps = [_step(n, m, align_corners, g) for n, m, g in zip(before, after, given, strict=True)]
    (h, w), (tall, wide) = after, steps
    rows = aten.linear(x, _weights(before[1], w, wide, align_corners))
    columns = aten.linear(rows.transpose(2, 3), _weights(before[0], h, tall, align_corners))
    return columns.transpose(2, 3)


def _step(before: int, after: int, align_corners: bool, given: float) -> float:
    """How far apart two outputs lie in the input. torch copies an axis that keeps its size, whatever its factor."""
    if before == after:
        return 1.0
    return (before - 1) / max(after - 1, 1) if align_corners else given


def _weights(size: int, made: int, step: float, align_corners: bool) -> Tensor:
    """Row i holds what output i takes of each input: of the two that are nearer than one to its position."""
    offset = 0.0 if align_corners else 0.5
    at = ((torch.arange(made, dtype=torch.float64) + offset) * step - offset).clamp(0, size - 1)
    distance = (at.unsqueeze(1) - torch.arange(size, dtype=torch.float64)).abs()
    return (1 - distance).clamp(min=0).float()


def _other_factors(node: Node) -> bool:
    return not factors_are_ratios(node)


RULE = Decomposition("bilinear-resize-as-linear", {aten.upsample_bilinear2d.vec: resized}, wanted=_other_factors)
