"""log_softmax where probabilities underflow: finite in float, and fine in 8 bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot
from ingot.config.recipe import Recipe
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from tests.support.requirements import need


class LogSoftmaxes(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x.log_softmax(d) for d in range(-x.dim(), x.dim())]


@pytest.mark.parametrize("name", ["vgf", "ethos-u55-128"])
def test_the_logarithm_of_a_probability_that_underflows(name: str) -> None:
    need(name)
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    legal = rewrite_for(ingot.capture(LogSoftmaxes(), (x,)), find_target(name), Recipe()).program
    for scaled in (x, x * 1000):
        for got, want in zip(legal.module(scaled), LogSoftmaxes()(scaled), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["vgf", "ethos-u85-256"])
def test_in_eight_bits_small_probabilities_count(name: str) -> None:
    """exp(-20) is less than a step of an 8-bit softmax."""
    need(name)
    batches = [(4 * torch.randn(2, 16, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    recipe = {"options": {"run_on": "reference-model"}} if name == "vgf" else {}
    net = nn.Sequential(nn.Linear(16, 16), nn.LogSoftmax(-1)).eval()
    casting = ingot.cast(net, batches[0], target=name, calibration=batches, recipe=recipe)
    assert casting.check is not None
    assert min(o.sqnr_db for o in casting.check.outputs) > 30


def test_a_maximum_in_float_keeps_the_exponential_finite() -> None:
    """Its scale was 1800: what was left above the rounded maximum had no exponential in float32."""
    batches = [(torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(i)) * 1e5,) for i in range(4)]
    net = nn.LogSoftmax(-1).eval()
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches, recipe={"inputs": ["int16"]})
    assert casting.check.passed
    assert not any(d.qparams and d.qparams.dtype == "int8" for d in casting.plan)
