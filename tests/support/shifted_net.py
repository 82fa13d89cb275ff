"""A net whose rounding errors all have one sign, for the tests of the search and of bias correction."""

from __future__ import annotations

import torch
from torch import nn

import ingot


class ShiftedNet(nn.Module):
    """Weights 0.4 steps above an integer: rounding shifts every channel in the same direction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        with torch.no_grad():
            self.first.weight.copy_((torch.randint(-60, 60, self.first.weight.shape) + 0.4) / 127)
            self.first.weight[:, 0, 0, 0] = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu().mean((2, 3)))


def recorded(count: int = 16) -> tuple[ingot.Program, ingot.Ranges, list[tuple[torch.Tensor]]]:
    torch.manual_seed(0)
    batches = [(torch.rand(1, 3, 8, 8),) for _ in range(count)]
    program = ingot.capture(ShiftedNet(), batches[0])
    return program, ingot.record(program, batches), batches
