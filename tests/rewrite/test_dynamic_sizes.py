"""Rewrites where sizes are dynamic: the same numbers at sizes that the graph was not traced with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import ingot
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, is_float
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target

N, L = Dim("n", min=1, max=8), Dim("l", min=2, max=40)
SIZES = ((1, 2), (5, 17), (8, 40))


class Traced(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x)


def _rows(n: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, length, 6),)


def _columns(n: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 6, length),)


def _kept(n: int, length: int) -> tuple[Tensor, ...]:
    return torch.randn(n, length, 6), (torch.rand(n, length) < 0.6).long()


def _float_mask(n: int, length: int) -> tuple[Tensor, ...]:
    return torch.randn(n, length, 8), torch.where(torch.rand(n, 1, length) < 0.5, -torch.inf, torch.randn(n, 1, length))


def _attention(x: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x * 0.5, x + 1, attn_mask=mask)


def _padded(x: Tensor, kept: Tensor) -> Tensor:
    added = (1.0 - kept[:, None, None, :].float()) * torch.finfo(torch.float32).min
    heads = x.view(*x.shape[:2], 2, 3).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=added).transpose(1, 2).flatten(2)


# name: rule, function, inputs
CASES: dict[str, tuple[str, Callable[..., Tensor], Callable[[int, int], tuple[Tensor, ...]]]] = {
    "sum of rows": ("dynamic-sum-as-matmul", lambda x: (x * 2).sum(1), _rows),
    "sum of rows, kept": ("dynamic-sum-as-matmul", lambda x: x.sum(1, keepdim=True), _rows),
    "sum of columns": ("dynamic-sum-as-matmul", lambda x: x.sum(-1), _columns),
    "sum of columns, kept": ("dynamic-sum-as-matmul", lambda x: x.sum(-1, keepdim=True), _columns),
    "mean of kept tokens": ("dynamic-sum-as-matmul", lambda x, m: (x * m[..., None].float()).sum(1) / 4, _kept),
    "count of kept tokens": (
        "dynamic-sum-as-matmul",
        lambda x, m: x + m[..., None].float().sum(1, keepdim=True),
        _kept,
    ),
    "sum of fixed size": ("sum-as-matmul", lambda x: (x * x).sum(-1, keepdim=True) + x, _rows),
    "norm of fixed size": ("sum-as-matmul", lambda x: F.normalize(x, dim=-1), _rows),
    "half powers": ("missing-power-as-products", lambda x: (x.abs() + 1).pow(-1.5), _rows),
    "rows without a key": ("dynamic-sum-as-matmul", _attention, _float_mask),
    "padding mask of heads": ("unit-dims-of-integers", _padded, _kept),
}


@pytest.mark.parametrize("name", CASES)
def test_dynamic_sizes_stay_inside_the_delegate(name: str) -> None:
    rule, function, inputs = CASES[name]
    torch.manual_seed(0)
    example = inputs(3, 7)
    shapes = tuple({0: N, next(i for i, s in enumerate(x.shape) if s == 7): L} for x in example)
    program = ingot.capture(Traced(function).eval(), example, dynamic_shapes=(shapes,))
    target = find_target("xnnpack")
    found = rewrite_for(program, target, Recipe())
    assert any(r.startswith(rule) and "not used" not in r for r in found.rewrites), found.rewrites
    left = [n for n in calls(found.program.module) if is_float(n) and not target.kernels.ability(n).runs]
    from_integers = [n for n in left if not is_float(n.all_input_nodes[0])]
    assert left == from_integers, left
    module: Any = found.program.module
    for size in SIZES:
        x = inputs(*size)
        torch.testing.assert_close(module(*x)[0], function(*x), rtol=1e-4, atol=1e-5)
