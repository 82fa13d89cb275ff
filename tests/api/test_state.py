"""Buffers that a model reads and writes: one delegate, and a sequence of calls is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.support.requirements import need


class Stream(nn.Module):
    """A causal convolution that keeps the last samples."""

    past: torch.Tensor

    def __init__(self, width: int = 3, channels: int = 4) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(channels, 8, width), nn.Conv1d(8, 4, 1)
        self.register_buffer("past", torch.randn(1, channels, width - 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.past, x], 2)
        self.past.copy_(y[:, :, -self.past.shape[2] :])
        z: torch.Tensor = self.head(self.conv(y).relu())
        return z


class Gru(nn.Module):
    h: torch.Tensor

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, size)
        self.register_buffer("h", torch.zeros(1, size))

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


class Window(nn.Module):
    """Attention over the last tokens: keys and values slide."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("keys", torch.zeros(1, tokens, width))
        self.register_buffer("values", torch.zeros(1, tokens, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = torch.cat([self.keys[:, 1:], self.k(x)], 1), torch.cat([self.values[:, 1:], self.v(x)], 1)
        self.keys.copy_(k)
        self.values.copy_(v)
        y: torch.Tensor = self.out((self.q(x) @ k.transpose(1, 2) / 2).softmax(-1) @ v)
        return y


class Mean(nn.Module):
    """A running mean, written in place by arithmetic."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.ones(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(self.linear(x) * 0.1)
        return x + self.mean


def random_net(kind: str, seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A net that keeps state, and the shape of its input."""
    torch.manual_seed(seed)
    a, b = (int(n) for n in torch.randint(2, 6, (2,)))
    made: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
        "stream": lambda: (Stream(a, b), (1, b, 2 + a)),
        "gru": lambda: (Gru(2 * b), (1, 4)),
        "window": lambda: (Window(a + 1, 4 * b), (1, 1, 4 * b)),
        "mean": lambda: (Mean(), (1, 8)),
    }
    return made[kind]()


KINDS = ("stream", "gru", "window", "mean")
CASES = [*((t, k) for t in ("ethos-u85-256", "vulkan", "xnnpack") for k in KINDS), ("vgf", "stream")]


@pytest.mark.parametrize(("target", "kind"), CASES)
def test_state_of_random_nets_is_one_delegate_and_the_writes(target: str, kind: str) -> None:
    """On a target that runs integers only its state is quantized where it is read."""
    net, shape = random_net(kind, seed=len(kind))
    batches = [(torch.randn(shape),) for _ in range(6)]
    recipe: dict[str, Any] = {"options": {"run_on": "reference-model"}} if target == "vgf" else {}
    recipe |= {"quantize": False} if target == "vulkan" else {}
    casting = ingot.cast(net.eval(), batches[0], target=need(target), calibration=batches, recipe=recipe)
    assert (len(casting.delegates), len(casting.host_ops)) == (1, 0), [h.op for h in casting.host_ops]
    sequence = ingot.verify(casting, [(torch.randn(shape),) for _ in range(8)])
    assert sequence.passed, sequence.outputs
    if target == "ethos-u85-256":
        reads = [d for d in casting.plan if d.reads in casting.needed_evidence.program.state]
        assert all(d.qparams is not None for d in reads if not d.op.startswith("aten.copy_"))


def test_a_state_that_would_stay_as_it_began_is_found_out() -> None:
    """The state moves far from its first value: an artefact that folds it is wrong."""
    torch.manual_seed(0)
    batches = [(torch.ones(1, 8) * i,) for i in range(6)]
    casting = ingot.cast(Mean().eval(), batches[0], target=need("ethos-u85-256"), calibration=batches)
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 25
