"""Python decisions on tensors: taken where no input changes the tensor, refused where one does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.errors import CaptureError


def captured_equals(net: nn.Module, *inputs: Tensor) -> None:
    made = ingot.capture(net.eval(), inputs).module(*inputs)
    torch.testing.assert_close(made[0] if isinstance(made, tuple) else made, net(*inputs))


class Causal(nn.Module):
    """torch looks into the mask of an encoder: is it causal?"""

    kept: Tensor

    def __init__(self, kept: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("kept", nn.Transformer.generate_square_subsequent_mask(5) if kept else torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        mask = self.kept if len(self.kept) > 1 else nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask=mask)


@pytest.mark.parametrize("kept", [True, False])
def test_the_mask_of_an_encoder(kept: bool) -> None:
    captured_equals(Causal(kept), torch.randn(1, 5, 8))


class Decides(nn.Module):
    """Counts, masks that are written in place, learned factors: all of them constants."""

    count: Tensor

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(draw.randint(1, 3)))
        self.weight = nn.Parameter(torch.tensor([draw.uniform(-1, 1), draw.uniform(-1, 1)]))
        self.place, self.limit = draw.randint(0, 3), draw.uniform(-1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(self.count)):
            x = x * self.weight[0]
        if self.weight.sum() > self.limit:
            x = x + 1
        mask = torch.zeros(4)
        mask[self.place :] = 1
        mask.mul_(2)
        if mask.sum().item() > 3 and not torch.equal(mask, torch.full((4,), 2.0)):
            x = x - 0.5
        return x


@pytest.mark.parametrize("seed", range(6))
def test_decisions_on_constants(seed: int) -> None:
    captured_equals(Decides(random.Random(seed)), torch.randn(2))


def on_an_input(x: Tensor, _count: Tensor) -> Any:
    return x * 2 if x.sum() > 0 else x


def on_what_an_input_was_written_into(x: Tensor, _count: Tensor) -> Any:
    mask = torch.zeros(4)
    part = mask[1:]
    mask[2] = x.sum()
    return x * 2 if part.sum() > 1 else x


def on_random_numbers(x: Tensor, _count: Tensor) -> Any:
    return x * 2 if torch.rand(3).sum() > 1 else x


def on_state(x: Tensor, count: Tensor) -> Any:
    more = x * 2 if count.sum() > 0 else x
    count.add_(1)
    return more


@pytest.mark.parametrize("decide", [on_an_input, on_what_an_input_was_written_into, on_random_numbers, on_state])
def test_other_decisions_are_refused(decide: Any) -> None:
    class Net(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Any:
            return decide(x, self.count)

    with pytest.raises(CaptureError, match="does not export"):
        ingot.capture(Net().eval(), (torch.randn(2),))
