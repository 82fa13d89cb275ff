"""Linears that quantize their input at run time: planned by price, simulated, lowered into the one delegate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.config.recipe import Recipe
from ingot.plan.simulated_quantization import fake_quantize_per_token, simulate_plan
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target

WIDTH = 32


class OutlierBlock(nn.Module):
    """A residual stream with an outlier channel, as trained transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)
        self.narrow.weight.data[3] *= 60

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x + self.narrow(nn.functional.gelu(self.wide(x)))))


def block(seed: int = 0) -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    torch.manual_seed(seed)
    return OutlierBlock().eval(), [(torch.randn(1, 12, WIDTH),) for _ in range(12)]


def planned(recipe: dict[str, Any] | None = None) -> tuple[Any, Any, list[tuple[torch.Tensor, ...]]]:
    net, batches = block()
    program = ingot.capture(net, batches[0])
    return program, ingot.plan(program, ingot.record(program, batches), "xnnpack", recipe=recipe), batches


def test_outliers_cost_less_with_run_time_scales_in_one_delegate() -> None:
    net, batches = block()
    made = {}
    for dynamic in (True, False):
        recipe = {"dynamic_activations": dynamic, "min_sqnr_db": 0.0}
        made[dynamic] = ingot.cast(net, batches[0], target="xnnpack", calibration=batches, recipe=recipe)
    best, static = made[True], made[False]
    assert best.plan.dynamic
    assert not static.plan.dynamic
    assert len(best.delegates) == 1
    assert not best.host_ops
    assert best.check.passed
    assert best.check.outputs[0].sqnr_db > static.check.outputs[0].sqnr_db + 6
    assert not any("float32" in note for note in best.check.notes)  # the reference runs it in double precision


def test_the_simulation_computes_what_the_artefact_does() -> None:
    program, plan, batches = planned({"scopes": [{"type": "Linear", "precision": "dynamic"}]})
    assert len(plan.dynamic) == 3
    casting = ingot.lower(program, plan)
    form = rewrite_for(program, find_target("xnnpack", (), ()), Recipe()).program.module
    expected = torch.cat([program.module(*b)[0] for b in batches])
    with torch.no_grad():
        simulated = torch.cat([simulate_plan(form, plan, b)[0] for b in batches])
    sqnr = 10 * torch.log10(expected.square().sum() / (expected - simulated).square().sum())
    assert float(sqnr) == pytest.approx(ingot.verify(casting, batches).outputs[0].sqnr_db, abs=0.5)


def test_the_plan_says_which_ops_and_why_and_survives_json() -> None:
    program, plan, _ = planned({"scopes": [{"type": "Linear", "precision": "dynamic"}]})
    name = plan.dynamic[0]
    assert "at run time" in plan.why(name)
    assert plan.qparams(name) is None
    assert plan.qparams(name, 0) is None
    weight = plan.qparams(name, 1)
    assert weight is not None
    assert weight.axis == 0
    assert ingot.Plan.from_json(plan.to_json()) == plan
    assert "run time" in plan.diff(ingot.plan(program, ingot.record(program, block()[1]), "xnnpack", recipe={
        "dynamic_activations": False}))  # fmt: skip


@pytest.mark.parametrize("precision", ["int8", "float"])
def test_a_scope_that_asks_for_another_precision_is_obeyed(precision: str) -> None:
    _, plan, _ = planned({"scopes": [{"type": "Linear", "precision": precision}]})
    assert not plan.dynamic


def test_a_target_without_such_kernels_refuses_the_precision() -> None:
    net, batches = block()
    program = ingot.capture(net, batches[0])
    ranges, recipe = ingot.record(program, batches), {"scopes": [{"type": "Linear", "precision": "dynamic"}]}
    with pytest.raises(ingot.IngotError, match="dynamic"):
        ingot.plan(program, ranges, "ethos-u55-128", recipe=recipe)


def test_a_convolution_cannot_be_dynamic() -> None:
    x = torch.randn(1, 3, 8, 8)
    program = ingot.capture(nn.Conv2d(3, 4, 3).eval(), (x,))
    ranges, recipe = ingot.record(program, [(x,)]), {"scopes": [{"op": "conv2d", "precision": "dynamic"}]}
    with pytest.raises(ingot.IngotError, match="dynamic"):
        ingot.plan(program, ranges, "xnnpack", recipe=recipe)


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_rounded_by_their_own_step(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(5, 16) * torch.logspace(-3, 3, 5)[:, None]
    step = (x.amax(1).clamp_min(0) - x.amin(1).clamp_max(0)) / 255
    assert bool(((fake_quantize_per_token(x) - x).abs() <= 0.51 * step[:, None]).all())


def test_an_edited_plan_with_an_unknown_dynamic_op_is_refused() -> None:
    from dataclasses import replace

    program, plan, _ = planned()
    with pytest.raises(ingot.IngotError, match="at run time"):
        ingot.lower(program, replace(plan, dynamic=("no_such_op",)))


@pytest.mark.parametrize("shape", [(3, 1), (2, 3, 1)])
def test_tokens_of_one_number_are_not_quantized_at_run_time(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net, batches = nn.Linear(1, 4).eval(), [(torch.randn(shape),) for _ in range(8)]
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches)
    assert not casting.plan.dynamic
    with pytest.raises(ingot.IngotError, match="dynamic"):
        ingot.cast(net, batches[0], target="xnnpack", calibration=batches, recipe=ONE_DYNAMIC)


ONE_DYNAMIC = {"scopes": [{"op": "linear*", "precision": "dynamic"}]}


ALL_DYNAMIC = {"scopes": [{"op": "*linear*", "precision": "dynamic"}]}


@pytest.mark.parametrize("shape", [(0, WIDTH), (4, 0, WIDTH)], ids=str)
def test_what_has_no_tokens_is_not_quantized_at_run_time(shape: tuple[int, ...]) -> None:
    """An empty result has no blocks."""
    net, batches = nn.Linear(WIDTH, 8).eval(), [(torch.randn(shape),) for _ in range(3)]
    assert ingot.cast(net, batches[0], target="xnnpack", calibration=batches).check.passed
    program = ingot.capture(net, batches[0])
    ranges = ingot.record(program, batches)
    with pytest.raises(ingot.PlanError, match="possible here"):
        ingot.plan(program, ranges, "xnnpack", recipe=ALL_DYNAMIC)


def test_a_single_dimension_is_one_token() -> None:
    """XNNPACK's serializer fails on it; with a batch of one it does not."""
    net, batches = nn.Linear(WIDTH, 8).eval(), [(torch.randn(WIDTH),) for _ in range(3)]
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches, recipe=ALL_DYNAMIC)
    assert casting.check.passed
    assert (len(casting.plan.dynamic), len(casting.delegates), casting.host_ops) == (1, 1, ())
