"""Values in channels-last or one-dimensional form between integer and float kernels: XNNPACK loads and computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot

STATIC = {"dynamic_activations": False}


class PoolThen(nn.Module):
    """XNNPACK's pools and convolutions give channels-last values; a linear reads the last axis."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.between = nn.Linear(6, 5), between

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.between(F.max_pool2d(x, 2, 1)))


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "elementwise": torch.tanh,
    "read twice": lambda x: torch.maximum(x, x + 1),
    "a slice": lambda x: torch.cat([x, x], -1)[..., 3:9],
}


def checked(net: nn.Module, batches: Any, recipe: dict[str, Any]) -> ingot.Casting:
    casting = ingot.cast(net.eval(), batches[0], target="xnnpack", calibration=batches, recipe=recipe)
    assert len(casting.delegates) == 1
    assert not casting.host_ops
    return casting


@pytest.mark.parametrize("between", BETWEEN)
def test_a_linear_quantizes_channels_last_tokens_at_run_time(between: str) -> None:
    batches = [(torch.randn(1, 3, 4, 7),) for _ in range(4)]
    dynamic = {"scopes": [{"op": "linear", "precision": "dynamic"}]}
    assert checked(PoolThen(BETWEEN[between]), batches, dynamic).plan.dynamic == ("linear",)


class Convolutions(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        conv = nn.Conv1d if dims == 1 else nn.Conv2d
        self.first, self.second, self.third = conv(4, 6, 3, padding=1), conv(6, 6, 3, padding=1), conv(6, 4, 3)
        self.pad = (1, 2, 0, 1)[: 2 * dims]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        y = y + y.roll(1, 1)
        return self.third(self.second(F.pad(y, self.pad))), self.third(self.second(y))


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("in_float", [["second"], ["second", "third"], ["first"], ["third"], ["first", "third"]])
def test_float_convolutions_read_and_feed_integer_ones(dims: int, in_float: list[str]) -> None:
    batches = [(torch.randn(1, 4, *[9] * dims),) for _ in range(4)]
    scopes = [{"path": name, "precision": "float"} for name in in_float]
    checked(Convolutions(dims), batches, {**STATIC, "scopes": scopes})
