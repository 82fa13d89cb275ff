"""The caller's torch modes (inference mode, no_grad, autocast, a default dtype) do not change what a cast computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import ingot


def net() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4), nn.Softmax(-1))
    return made.eval().float()


def batches(n: int = 4) -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 32, generator=g, dtype=torch.float32),) for _ in range(n)]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Any] = {
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "float64": partial(default_dtype, torch.float64),
}
SCHEMES = [None, "8da4w"]


@pytest.fixture(scope="module")
def plain() -> dict[Any, ingot.Casting]:
    return {w: ingot.cast(net(), batches()[0], target="xnnpack", calibration=batches(), weights=w) for w in SCHEMES}


@pytest.mark.parametrize("weights", SCHEMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:Ingot was called under torch.autocast")
def test_a_cast_inside_a_mode_is_the_same_cast(mode: str, weights: str | None, plain: dict[Any, Any]) -> None:
    """With a model and data from outside."""
    model, data = net(), batches()
    with MODES[mode]():
        made = ingot.cast(model, data[0], target="xnnpack", calibration=data, validation=data, weights=weights)
        again = ingot.verify(made, data)
        found = ingot.localize(made, data)
    assert made.pte == plain[weights].pte
    assert made.check.outputs == plain[weights].check.outputs == again.outputs
    assert found.kind == "none"


@pytest.mark.parametrize("mode", ["inference", "no grad"])
def test_a_model_made_inside_a_mode(mode: str, plain: dict[Any, ingot.Casting]) -> None:
    """Its weights are tensors of inference mode then."""
    with MODES[mode]():
        model, data = net(), batches()
    made = ingot.cast(model, data[0], target="xnnpack", calibration=data)
    assert made.pte == plain[None].pte
    with MODES[mode]():
        assert ingot.cast(net(), batches()[0], target="xnnpack", calibration=batches()).pte == plain[None].pte


def test_tensors_of_inference_mode_everywhere(plain: dict[Any, ingot.Casting]) -> None:
    with torch.inference_mode():
        data = [(x.clone(),) for (x,) in batches()]
    made = ingot.cast(net(), data[0], target="xnnpack", calibration=data, validation=data)
    assert made.pte == plain[None].pte
    assert ingot.verify(made, data).passed


def test_autocast_is_told() -> None:
    with MODES["autocast"](), pytest.warns(UserWarning, match="runs without it"):
        ingot.capture(net(), batches()[0])


def test_the_modes_of_the_caller_are_left_alone() -> None:
    with MODES["float64"](), torch.inference_mode():
        ingot.capture(net(), batches()[0])
        assert torch.is_inference_mode_enabled()
        assert torch.get_default_dtype() == torch.float64
