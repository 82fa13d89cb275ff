"""Norms without an order, of every order, over every choice of dimensions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.config.recipe import Recipe
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from tests.support.requirements import need

ORDERS: tuple[float | None, ...] = (None, 2, 1, 0, 3, 2.5, -1, -2, math.inf, -math.inf)
DIMS: tuple[Any, ...] = (None, -1, 1, (0, 2), (0, 1, 2))
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


class Norms(nn.Module):
    """Every spelling, and every order over every choice of dimensions."""

    def __init__(self, orders: tuple[Any, ...] = ORDERS):
        super().__init__()
        self.orders = orders

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        norm = torch.linalg.vector_norm
        found = [x.norm(), norm(x), torch.norm(x), norm(x, dim=-1), x.norm(dim=1, keepdim=True), x.norm(p=1)]
        found += [norm(x, dim=(0, 2), dtype=torch.float32), torch.linalg.norm(x, dim=2)]
        for order, dim, keep in itertools.product(self.orders, DIMS, (True, False)):
            ordered = {} if order is None else {"ord": order}
            found.append(norm(x, **ordered, dim=dim, keepdim=keep))
        return found


@pytest.mark.parametrize("name", ["xnnpack", "vulkan", "vgf", "ethos-u55-128"])
def test_rewritten_norms_are_the_same(name: str) -> None:
    need(name)
    net = Norms()
    program = ingot.capture(net, (X,))
    legal = rewrite_for(program, find_target(name), Recipe()).program
    for x in (X, X * 100 - 3):
        for got, want in zip(legal.module(x), net(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("orders", [(None, 2), (1, math.inf, -math.inf, 3)], ids=["default", "others"])
def test_norms_are_cast(orders: tuple[Any, ...]) -> None:
    batches = [(torch.randn(2, 3, 4) + 0.1,) for _ in range(4)]
    casting = ingot.cast(Norms(orders), batches[0], target="xnnpack", calibration=batches)
    assert casting.check is not None
    assert min(o.sqnr_db for o in casting.check.outputs) > 30
