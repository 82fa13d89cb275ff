"""Values that are one number at all times: zeros, ones, tiny and huge numbers. The artefact agrees with its graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot

NUMBERS = (0.0, 1.0, -1.0, 3.7, -1e-3, 1e6, -1e20)


class Constants(nn.Module):
    """Each number as a measured value: as factor, summand, part of a cat, output, and input of a weight."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        super().__init__()
        self.numbers = numbers
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(16, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        zero, y = torch.relu(-x.abs()), self.a(x)  # zero for every x, which no pass can know
        found: list[torch.Tensor] = []
        for number in self.numbers:
            value = zero + number
            found += [value * y, value, self.b(torch.cat([y, value], 1)), self.c(value)]
            found += [value + y, (value - y).sigmoid()] if abs(number) < 100 else []  # else y is lost in the sum
        return found


@pytest.mark.parametrize("seed", range(2))
def test_the_artefact_agrees_with_its_graph_and_the_model(seed: int) -> None:
    torch.manual_seed(seed)
    batches = [(torch.randn(2, 8),) for _ in range(4)]
    check = ingot.cast(Constants(NUMBERS).eval(), batches[0], target="xnnpack", calibration=batches).check
    assert check is not None
    assert min(o.faithful_db for o in check.outputs) > 100
    assert min(o.sqnr_db for o in check.outputs) > 30


def test_a_zero_that_is_added_to_a_tiny_number_is_never_silently_wrong() -> None:
    """The scale of an all-zero value is arbitrary; XNNPACK's add loses the other operand if that scale is far larger."""
    batches = [(torch.randn(2, 8),) for _ in range(4)]
    casting = ingot.cast(
        Constants((1e-6,)).eval(), batches[0], target="xnnpack", calibration=batches, on_mismatch="keep"
    )
    assert casting.check is not None
    for output in casting.check.outputs:
        assert output.problem is not None or output.sqnr_db > 30


def test_what_calibration_saw_as_constant_and_varies_later_is_told_and_caught() -> None:
    class Gated(nn.Module):
        def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, gate], 1) * 2

    batches = [(torch.randn(2, 8), torch.zeros(2, 8)) for _ in range(4)]
    casting = ingot.cast(Gated().eval(), batches[0], target="xnnpack", calibration=batches)
    assert any("calibration saw no variation: gate" in n for n in casting.notes)
    other = [(torch.randn(2, 8), 100 * torch.randn(2, 8)) for _ in range(4)]
    assert not ingot.verify(casting, other).passed
