"""Convolutions whose kernel the net computes become products with windows of their input."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ingot
from ingot.rewrite.computed_kernels import RULE
from ingot.rewrite.decomposition import Declined

aten = torch.ops.aten


def each(draw: random.Random, rank: int, low: int, high: int) -> list[int]:
    return [draw.randint(low, high) for _ in range(draw.choice((1, rank)))]


def arguments(draw: random.Random, rank: int, transposed: bool) -> list[Any]:
    """Any number of examples and groups, any step, gap and padding."""
    groups, gaps, steps = draw.choice((1, 2, 3)), each(draw, rank, 1, 2), each(draw, rank, 1, 3)
    inner, outer = groups * draw.randint(1, 2), groups * draw.randint(1, 2)
    kernel = [draw.randint(1, 3) for _ in range(rank)]
    shape = (inner, outer // groups, *kernel) if transposed else (outer, inner // groups, *kernel)
    x = torch.randn(draw.randint(1, 2), inner, *(draw.randint(5, 7) for _ in range(rank)))
    given: list[Any] = [x, torch.randn(shape), draw.choice((None, torch.randn(outer))), steps, each(draw, rank, 0, 1)]
    more = [[draw.randint(0, max(min(steps), min(gaps)) - 1)]] if transposed else []
    return [*given, *more, groups, gaps] if transposed else [*given, gaps, groups]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([op for op in RULE.functions if "conv" in str(op)]))
def test_it_computes_what_the_convolution_computes(draw: random.Random, op: Any) -> None:
    torch.manual_seed(draw.randrange(1 << 30))
    given = arguments(draw, 1 if op is aten.conv1d.default else 2, "transpose" in str(op))
    try:
        made = RULE.functions[op](*given)
    except Declined:  # a transposed one whose last windows reach beyond its result
        return
    torch.testing.assert_close(made, op(*given), rtol=1e-4, atol=1e-4)


def test_experts_and_a_template_are_one_delegate() -> None:
    """The kernel is a mixture of learned ones; its result is searched for a part of another image."""

    class Search(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts, self.choice = nn.Parameter(torch.randn(2, 4, 3, 3, 3) / 5), nn.Linear(3, 2)
            self.last = nn.Linear(4, 5)

        def features(self, x: Tensor) -> Tensor:
            weights = self.choice(x.mean((2, 3))).softmax(-1).reshape(2, 1, 1, 1, 1)
            return F.conv2d(x, (self.experts * weights).sum(0), stride=2).relu()

        def forward(self, template: Tensor, x: Tensor) -> Tensor:
            kernel = self.features(template)
            found = F.conv2d(self.features(x), kernel.reshape(4, 1, *kernel.shape[2:]), groups=4)
            made = self.last(kernel.mean((2, 3)))
            return F.linear(found.flatten(2), kernel.reshape(4, 9)[:, :1].expand(4, found[0, 0].numel()), made[0, :4])

    torch.manual_seed(0)
    batches = [(torch.randn(1, 3, 8, 8), torch.randn(1, 3, 16, 16)) for _ in range(4)]
    casting = ingot.cast(Search().eval(), batches[0], target="xnnpack", calibration=batches)
    assert len(casting.delegates) == 1
    assert not casting.host_ops
