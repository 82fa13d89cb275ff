"""Factors on channels: which ops carry them on, by experiment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.channel_scaling import scaled_result

CHANNELS = torch.arange(40, 46).reshape(1, 6, 1, 1)


class _One(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x)


def result_of(function: Any, inputs: int = 1) -> Any:
    """What becomes of the channels of all inputs; of several, each has its own."""
    x = tuple(torch.rand(1, 6, 4, 4) for _ in range(inputs))
    graph = torch.export.export(_One(function), x).module(check_guards=False).graph
    node = next(n for n in reversed(graph.nodes) if n.op == "call_function" and n.meta.get("val") is not None)
    return scaled_result(node, {i: CHANNELS + 10 * i for i in range(len(operands(node)))})


@pytest.mark.parametrize(
    "function",
    [
        torch.relu, torch.abs, torch.neg, F.leaky_relu, lambda x: x * 3, lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 3, padding=1), lambda x: F.pad(x, (1, 0)), lambda x: x[:, :, 1:],
        lambda x: F.interpolate(x, scale_factor=2),
    ],
)  # fmt: skip
def test_positive_homogeneous_ops_keep_channels_in_place(function: Any) -> None:
    found = result_of(function)
    assert torch.equal(found.channels, CHANNELS)
    assert not found.bounds


@pytest.mark.parametrize("function", [torch.tanh, torch.exp, F.gelu, F.hardswish, lambda x: x + 1, lambda x: x.mean(1)])
def test_other_ops_do_not(function: Any) -> None:
    assert result_of(function) is None


def test_channels_move_with_the_values() -> None:
    assert torch.equal(result_of(lambda x: x.permute(0, 2, 3, 1)).channels, CHANNELS.reshape(1, 1, 1, 6))
    assert torch.equal(result_of(lambda x: x.mean((2, 3))).channels, CHANNELS.reshape(1, 6))
    flat = result_of(lambda x: x.flatten(1)).channels
    assert torch.equal(flat, CHANNELS.reshape(-1).repeat_interleave(16)[None])
    assert torch.equal(result_of(lambda x: x[:, 2:4]).channels, CHANNELS[:, 2:4])


def test_of_two_operands_a_cat_keeps_both_and_an_add_joins_them() -> None:
    both = result_of(lambda x, y: torch.cat([x, y], 1), 2)
    assert torch.equal(both.channels, torch.cat([CHANNELS, CHANNELS + 10], 1))
    assert not both.joint
    joined = result_of(torch.add, 2)
    assert joined.joint
    assert torch.equal(joined.channels, CHANNELS)
    assert result_of(torch.mul, 2) is None  # f(x / s, y / s) = f(x, y) / s²


def test_a_clamp_commutes_within_its_bounds() -> None:
    assert result_of(F.relu6).bounds == (6.0,)
    assert result_of(lambda x: torch.clamp(x, -1, 3)).bounds == (-1.0, 3.0)
    assert result_of(lambda x: torch.clamp(x, 1, 3)) is None  # zero is not within them


def test_the_program_is_not_needed_at_full_size() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    program = ingot.capture(Wide(), (torch.rand(1, 64, 256, 256),))
    node = next(n for n in program.module.graph.nodes if n.op == "call_function")
    channels = torch.arange(64).reshape(1, 64, 1, 1)
    assert torch.equal(scaled_result(node, {0: channels}).channels, channels)  # type: ignore[union-attr]
