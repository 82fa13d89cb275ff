"""Every convolution has the name of its kind after capture, however it was written, and computes the same."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ingot
from ingot.core.fx import calls

aten = torch.ops.aten


class General(nn.Module):
    """The general op, with random arguments."""

    def __init__(self, draw: random.Random, rank: int, transposed: bool) -> None:
        super().__init__()
        groups, inner, outer = draw.choice((1, 2)), 4, draw.choice((2, 4))
        shape = (inner, outer // groups) if transposed else (outer, inner // groups)
        self.weight = nn.Parameter(torch.randn(*shape, *(draw.randint(1, 3) for _ in range(rank))))
        self.bias = nn.Parameter(torch.randn(outer)) if draw.random() < 0.5 else None
        stride, padding, dilation = ([draw.randint(low, 2) for _ in range(rank)] for low in (1, 0, 1))
        output_padding = [draw.randint(0, s - 1) if transposed else 0 for s in stride]
        self.arguments = (stride, padding, dilation, transposed, output_padding, groups)

    def forward(self, x: Tensor) -> Tensor:
        return torch.convolution(x, self.weight, self.bias, *self.arguments)


@given(seed=st.integers(0, 1 << 30), rank=st.integers(1, 3), transposed=st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_general_convolution_gets_the_name_of_its_kind(seed: int, rank: int, transposed: bool) -> None:
    torch.manual_seed(seed)
    model = General(random.Random(seed), rank, transposed).eval()
    x = torch.randn(2, 4, *[5] * rank)
    module = ingot.capture(model, (x,)).module
    kinds = [str(n.target.overloadpacket) for n in calls(module)]
    assert kinds == [f"aten.conv_transpose{rank}d" if transposed else f"aten.conv{rank}d"]
    torch.testing.assert_close(module(x)[0], model(x))


@pytest.mark.parametrize("target", ["xnnpack", "ethos-u55-128", "vulkan"])
def test_a_3d_convolution_with_string_padding_is_cast(target: str) -> None:
    """An even kernel: the pad is not the same on both sides. No delegate and no host kernel has three dimensions.

    Depths become batches, and Vulkan's convolution takes a batch of one: there the host runs it.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(4, 6, 2, padding="same", groups=2), nn.ReLU()).eval()
    batches = [(torch.randn(1, 4, 5, 4, 4),) for _ in range(3)]
    recipe = {"quantize": False} if target == "vulkan" else {}
    casting = ingot.cast(model, batches[0], target=target, calibration=batches, recipe=recipe)
    assert casting.check.passed
    assert any("convolution" in h.op for h in casting.host_ops) == (target == "vulkan")
