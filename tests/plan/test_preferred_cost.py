"""What a plan saves: time, bytes of the file, or energy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot
from ingot.plan.preferred_cost import preferred_cost
from ingot.targets.base import CostModel
from ingot.targets.registry import find_target


class LargeHead(nn.Module):
    """Convolutions with most of the products, and a linear with most of the weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8 * 16, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(self.convs(x), 4).flatten(1))


def cast(prefer: str) -> ingot.Casting:
    batches = [(torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(i)),) for i in range(8)]
    recipe = {"prefer": prefer, "noise_vs_latency": 1.0, "dynamic_activations": False}
    return ingot.cast(LargeHead().eval(), batches[0], target="xnnpack", calibration=batches, recipe=recipe)


@pytest.fixture(scope="module")
def castings() -> dict[str, ingot.Casting]:
    return {prefer: cast(prefer) for prefer in ("time", "bytes", "energy")}


def weights_in(casting: ingot.Casting, op: str) -> set[str]:
    return {
        d.qparams.dtype if d.qparams else "float" for d in casting.plan if d.op.startswith(op) and d.point.operand == 1
    }


def test_bytes_buy_precision_with_products_but_not_with_weights(castings: dict[str, ingot.Casting]) -> None:
    """Float convolutions cost nothing in the file, where a float head costs most of it."""
    assert weights_in(castings["time"], "aten.conv") == {"int8"}
    assert "int8" not in weights_in(castings["bytes"], "aten.conv")
    assert weights_in(castings["bytes"], "aten.linear") == {"int8"}
    assert castings["bytes"].check.outputs[0].sqnr_db > castings["time"].check.outputs[0].sqnr_db
    assert len(castings["bytes"].pte) < 1.1 * len(castings["time"].pte)


def test_energy_keeps_products_in_integers(castings: dict[str, ingot.Casting]) -> None:
    assert weights_in(castings["energy"], "aten.conv") == {"int8"}
    assert castings["energy"].check.passed


def test_time_is_the_cost_model_of_the_target() -> None:
    cost = find_target("xnnpack").cost
    assert preferred_cost(cost, "time") is cost


def test_each_precision_of_a_target_has_a_price() -> None:
    cost = CostModel({"int8": 1.0, "int16": 2.0, "float": 3.0})
    assert set(preferred_cost(cost, "bytes").multiply.values()) == {0.0}
    energy = preferred_cost(cost, "energy").multiply
    assert energy["int8"] < energy["int16"] < energy["float"]
