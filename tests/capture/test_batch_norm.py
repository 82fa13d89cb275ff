"""A batch norm whose statistics or factors the net computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot

WHICH = ["statistics", "factors", "factors, one dimension"]


@pytest.mark.parametrize("which", WHICH)
def test_it_becomes_arithmetic_in_one_delegate(which: str) -> None:
    class Adaptive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.factors = nn.Conv2d(3, 6, 3), nn.Linear(4, 12)

        def forward(self, x: Tensor, style: Tensor) -> Tensor:
            y = self.conv(x)
            weight, bias = self.factors(style).reshape(2, 6)
            if which == "statistics":
                return F.batch_norm(y, y.mean((0, 2, 3)), y.var((0, 2, 3)), None, bias)
            mean, var = torch.arange(6) * 0.1, torch.ones(6) * 0.7
            if "one dimension" in which:
                return F.batch_norm(y.flatten(2), mean, var, weight, bias)
            return F.batch_norm(y, mean, var, weight, bias)

    torch.manual_seed(0)
    batches = [(torch.randn(2, 3, 8, 8), torch.randn(1, 4)) for _ in range(4)]
    casting = ingot.cast(Adaptive().eval(), batches[0], target="xnnpack", calibration=batches)
    assert len(casting.delegates) == 1
    assert not casting.host_ops
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 25
