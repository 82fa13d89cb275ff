"""Corrections: equalization and smoothing are found, judged on batches they were not derived from, and replayed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.config.recipe import Recipe
from ingot.core.channel_factors import ChannelFactors
from ingot.plan.correction_search import gain_on_judging_batches
from ingot.plan.estimator_search import PlanTrial
from ingot.plan.plan_data import Plan

OFF: dict[str, object] = {"equalize_channels": False, "smooth_inputs": False}
STATIC: dict[str, object] = {"dynamic_activations": False, "min_sqnr_db": 0.0}


class NormThenLinear(nn.Module):
    """Two channels behind the norm are far larger than the others, and the weights that read them far smaller."""

    def __init__(self, outliers: Tensor) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.wide, self.narrow = nn.Linear(32, 48), nn.Linear(48, 8)
        self.norm.weight.data *= outliers
        self.wide.weight.data /= outliers

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.wide(self.norm(self.first(x)))))


class Chain(nn.Module):
    """conv, depthwise conv, conv, with channels of very different size between them."""

    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.a, self.d, self.p = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 6, 1)
        self.act = act()
        with torch.no_grad():
            for before, after in ((self.a, self.d), (self.d, self.p)):
                sizes = torch.exp(1.3 * torch.randn(16))[:, None, None, None]
                before.weight *= sizes
                before.bias *= sizes.flatten()
                after.weight /= sizes if after is self.d else sizes.transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.p(self.act(self.d(self.act(self.a(x)))))


class Residual(nn.Module):
    """A linear writes large channels into a stream whose other readers no factor passes."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.norm, self.read = nn.Linear(24, 24), nn.LayerNorm(24), nn.Linear(24, 6)
        self.write.weight.data[5] *= 100

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.norm(x + self.write(x)))


def outliers() -> nn.Module:
    sizes = torch.ones(32)
    sizes[3], sizes[17] = 40.0, 15.0
    return NormThenLinear(sizes)


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "norm -> linear": (outliers, (1, 12, 32)),
    "conv -> relu": (lambda: Chain(nn.ReLU), (1, 3, 12, 12)),
    "conv -> relu6": (lambda: Chain(nn.ReLU6), (1, 3, 12, 12)),
    "residual stream": (Residual, (1, 12, 24)),
}


def recorded(name: str, seed: int = 0) -> tuple[ingot.Program, ingot.Ranges, list[tuple[Tensor, ...]]]:
    """Twenty batches to record, and four that nobody saw. Uniform, so that their ends were seen."""
    torch.manual_seed(seed)
    make, shape = NETS[name]
    batches: list[tuple[Tensor, ...]] = [(torch.rand(*shape) * 4 - 2,) for _ in range(24)]
    program = ingot.capture(make().eval(), batches[0])
    return program, ingot.record(program, batches[:20]), batches[20:]


@pytest.mark.parametrize("name", NETS)
def test_outlier_channels_cost_little_on_unseen_data(name: str) -> None:
    """Executed, as one delegate; in the file and the graph alike."""
    program, ranges, unseen = recorded(name)
    plans = [ingot.plan(program, ranges, "xnnpack", recipe={**STATIC, **off}) for off in (OFF, {})]
    before, after = (ingot.lower(program, p, recipe=STATIC) for p in plans)
    assert not plans[0].channel_factors
    assert plans[1].channel_factors
    checks = [ingot.verify(c, unseen) for c in (before, after)]
    assert checks[1].passed
    assert checks[1].outputs[0].sqnr_db > checks[0].outputs[0].sqnr_db + (3 if name == "residual stream" else 6)
    assert len(after.delegates) == 1
    assert not after.host_ops
    assert "on batches that they were not derived from" in " ".join(after.notes)


def test_the_same_on_a_target_of_integers_only() -> None:
    for name in ("norm -> linear", "conv -> relu6"):
        program, ranges, _ = recorded(name)
        off, on = (ingot.plan(program, ranges, "ethos-u55-128", recipe=r) for r in (OFF, {}))
        assert on.predicted.sqnr_db > off.predicted.sqnr_db + 3  # type: ignore[operator]
        assert on.predicted.time <= off.predicted.time  # where 8 bits were too few, 16 were taken


def test_factors_are_explained_and_survive_json() -> None:
    program, ranges, unseen = recorded("conv -> relu6")
    plan = ingot.plan(program, ranges, "xnnpack")
    name = next(iter(plan.channel_factors.constants))
    assert "its channels are divided by" in plan.why(name)
    again = Plan.from_json(plan.to_json())
    assert again.channel_factors == plan.channel_factors
    assert not plan.diff(again)
    assert f"{name}: different channel factors" in plan.diff(replace(plan, channel_factors=ChannelFactors()))
    assert ingot.lower(program, again).pte == ingot.lower(program, plan).pte
    assert ingot.verify(ingot.lower(program, again), unseen).passed


def test_a_saved_casting_with_factors_loads_and_verifies(tmp_path: Any) -> None:
    program, ranges, unseen = recorded("norm -> linear")
    casting = ingot.lower(program, ingot.plan(program, ranges, "xnnpack", recipe=STATIC), recipe=STATIC)
    checked = ingot.cast(
        program.exported, target="xnnpack", calibration=ranges.cached_batches, validation=unseen, recipe=STATIC
    )
    checked.save_folder(tmp_path / "out")
    again = ingot.Casting.load(tmp_path / "out")
    assert again.plan.channel_factors == casting.plan.channel_factors
    assert ingot.verify(again, unseen).passed


def test_training_goes_on_from_a_plan_with_factors() -> None:
    program, ranges, unseen = recorded("conv -> relu")
    training = ingot.train(program, ingot.plan(program, ranges, "xnnpack"))
    want = program.module(*unseen[0])[0]
    assert float((training(*unseen[0]) - want).square().sum() / want.square().sum()) < 1e-2
    assert ingot.verify(ingot.lower(*training.finish()), unseen).passed


def test_nothing_is_scaled_where_channels_are_alike() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    batches = [(torch.randn(1, 3, 12, 12),) for _ in range(8)]
    program = ingot.capture(net, batches[0])
    ranges = ingot.record(program, batches)
    on, off = (ingot.plan(program, ranges, "xnnpack", recipe=r) for r in ({}, OFF))
    assert on.decisions == off.decisions
    assert not on.channel_factors


def test_with_too_few_batches_to_judge_nothing_is_corrected() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(1, 12, 32),) for _ in range(3)]
    program = ingot.capture(outliers(), batches[0])
    assert not ingot.plan(program, ingot.record(program, batches), "xnnpack").channel_factors


def _trial(noises: list[float], time: float) -> PlanTrial:
    plan = Plan("xnnpack", "", ())
    return PlanTrial("auto", replace(plan, predicted=replace(plan.predicted, time=time)), tuple(noises), 0.0)


@pytest.mark.parametrize(
    ("after", "time", "taken"),
    [
        ([0.5] * 8, 100.0, True),
        ([0.95] * 8, 100.0, False),  # hardly less noise
        ([9.9, 0.1, 9.9, 4.0, 9.9, 0.1, 9.9, 1.5], 100.0, False),  # some batches win, some lose
        ([0.1, 2.0] * 4, 100.0, False),  # only those that it was derived from win
        ([0.5] * 8, 104.0, True),  # 5 % of the time for half of the noise
        ([0.5] * 8, 106.0, False),
    ],
)
def test_a_correction_is_taken_for_less_noise_that_is_no_chance(after: list[float], time: float, taken: bool) -> None:
    gain = gain_on_judging_batches(_trial([1.0] * 8, 100.0), _trial(after, time), Recipe())
    assert (gain is not None) == taken


def test_a_correction_that_fails_costs_a_note_and_not_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such thing at all")

    program, ranges, _ = recorded("conv -> relu")
    off = ingot.plan(program, ranges, "xnnpack", recipe=OFF)
    module = sys.modules["ingot.plan.correction_search"]  # ingot.plan is a function
    monkeypatch.setattr(module, "scalable_channels", broken)
    plan = ingot.plan(program, ranges, "xnnpack", recipe={"smooth_inputs": False})
    assert plan.decisions == off.decisions
    assert plan.notes[-1] == "equalization: not tried, it fails: RuntimeError: no such thing at all"
