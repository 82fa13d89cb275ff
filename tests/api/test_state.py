"""Buffers that a model reads and writes: one delegate, and a sequence of calls is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ingot


class Stream(nn.Module):
    """A causal convolution that keeps the last samples."""

    past: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(4, 8, 3), nn.Conv1d(8, 4, 1)
        self.register_buffer("past", torch.zeros(1, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.past, x], 2)
        self.past.copy_(y[:, :, -2:])
        z: torch.Tensor = self.head(self.conv(y).relu())
        return z


class Gru(nn.Module):
    h: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.register_buffer("h", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.cell(x, self.h)
        self.h.copy_(h)
        return h * 2


@pytest.mark.parametrize(("make", "shape"), [(Stream, (1, 4, 6)), (Gru, (1, 4))], ids=["stream", "gru"])
def test_state_is_read_and_written_by_one_delegate(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(shape),) for _ in range(6)]
    casting = ingot.cast(make().eval(), batches[0], target="xnnpack", calibration=batches)
    assert (len(casting.delegates), len(casting.host_ops)) == (1, 0), [h.op for h in casting.host_ops]
    sequence = ingot.verify(casting, [(torch.randn(shape),) for _ in range(8)])
    assert sequence.passed
    assert sequence.batches == 8
