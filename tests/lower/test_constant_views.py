"""Constants that are slices of a larger memory: backends read memory from its start, and must not see these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot


class FromOneMemory(nn.Module):
    """Its weights are parts of one flat tensor, at random places, as some loaders and trainers hold them."""

    def __init__(self, seed: int):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        flat, self.at = torch.randn(4000, generator=g) / 2, 1
        gap = torch.randint(0, 9, (8,), generator=g).tolist()

        def part(*shape: int) -> torch.Tensor:
            self.at += gap.pop()
            found = flat[self.at : self.at + torch.Size(shape).numel()].view(shape)
            self.at += found.numel()
            return found

        self.weight, self.bias = nn.Parameter(part(8, 8)), nn.Parameter(part(8))
        self.kernel = nn.Parameter(part(4, 1, 3))
        self.table: torch.Tensor
        self.register_buffer("factor", part(1, 8))
        self.register_buffer("offset", part(2, 8))
        self.register_buffer("table", part(5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x * self.factor, self.weight, self.bias)
        y = nn.functional.conv1d(torch.sin(y).unsqueeze(1), self.kernel, padding=1)
        return y.sum(1) + self.offset - self.table[2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("recipe", [{}, {"quantize": False}], ids=["int8", "float"])
def test_parts_of_one_memory(seed: int, recipe: dict[str, Any]) -> None:
    torch.manual_seed(seed)
    net = FromOneMemory(seed).eval()
    assert net.offset.storage_offset()  # type: ignore[operator]
    before = net.weight.data_ptr()
    batches = [(torch.randn(2, 8),) for _ in range(4)]
    check = ingot.cast(net, batches[0], target="xnnpack", calibration=batches, recipe=recipe).check
    assert check is not None
    assert check.outputs[0].faithful_db > 80
    assert net.weight.data_ptr() == before  # the model itself is as it was


class Recurrent(nn.Module):
    def __init__(self, kind: Any, inputs: int, hidden: int):
        super().__init__()
        self.cell = kind(inputs, hidden, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


SIZES = [(8, 16, 4, 1), (4, 8, 16, 1), (16, 8, 6, 2), (5, 7, 5, 3)]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("size", SIZES[:2])
def test_a_recurrent_net_that_starts_at_zero(kind: Any, size: tuple[int, ...]) -> None:
    """The first step of the state is constant: folded, its gates are parts of one constant."""
    recurrent(kind, size)


@pytest.mark.long
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("size", [*SIZES[2:], (32, 16, 32, 4), (3, 33, 9, 1), (12, 20, 24, 1)])
def test_recurrent_nets_of_more_sizes(kind: Any, size: tuple[int, ...]) -> None:
    recurrent(kind, size)


def recurrent(kind: Any, size: tuple[int, ...]) -> None:
    inputs, hidden, steps, batch = size
    torch.manual_seed(sum(size))
    net = Recurrent(kind, inputs, hidden).eval()
    batches = [(torch.randn(batch, steps, inputs),) for _ in range(8)]
    check = ingot.cast(net, batches[0], target="xnnpack", calibration=batches).check
    assert check is not None
    assert check.outputs[0].faithful_db > 60
    assert check.outputs[0].sqnr_db > 25


class SelfAttention(nn.Module):
    """Query, key and value biases are parts of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("how", [{"weights": "8da8w"}, {"recipe": {"quantize": False}}, {}], ids=str)
def test_the_biases_of_a_fused_projection(how: dict[str, Any]) -> None:
    batches = [(torch.randn(1, 5, 32),) for _ in range(4)]
    check = ingot.cast(SelfAttention().eval(), batches[0], target="xnnpack", calibration=batches, **how).check
    assert check is not None
    assert check.outputs[0].faithful_db > 40
    assert check.outputs[0].sqnr_db > 25
