"""A plan that the check would refuse gets more precision, and no more than it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.support.requirements import need

UNREACHABLE_DB = 90.0  # of a program with integers in it


def deep(seed: int) -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    """Linear layers whose rounding errors add up."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(10) for layer in (nn.Linear(24, 24), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(24, 5)).eval(), [(2 * torch.randn(4, 24),) for _ in range(8)]


def cast(recipe: dict[str, Any], seed: int = 0) -> ingot.Casting:
    net, batches = deep(seed)
    facts = {"dynamic_activations": False, **recipe}
    return ingot.cast(net, batches[0], target="xnnpack", calibration=batches, recipe=facts, on_mismatch="keep")


def searched(casting: ingot.Casting) -> bool:
    return any(note.startswith("more precision") for note in casting.notes)


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_below_the_threshold_gets_the_precision_that_the_check_asks_for(seed: int) -> None:
    plain = cast({"min_sqnr_db": 0.0}, seed)
    bar = plain.check.outputs[0].sqnr_db + 6
    better = cast({"min_sqnr_db": bar}, seed)
    assert not searched(plain)
    assert searched(better)
    assert better.check.passed
    assert better.check.outputs[0].sqnr_db >= bar
    assert better.plan.predicted.precisions["int8"] > 0
    assert better.plan.predicted.precisions["float"] > plain.plan.predicted.precisions.get("float", 0)


def test_a_price_that_the_recipe_gives_is_kept() -> None:
    bar = cast({"min_sqnr_db": 0.0}).check.outputs[0].sqnr_db + 6
    casting = cast({"min_sqnr_db": bar, "noise_vs_latency": 0.05})
    assert not searched(casting)
    assert not casting.check.passed


def test_a_threshold_that_only_a_float_program_reaches_is_no_reason_to_leave_integers() -> None:
    casting = cast({"min_sqnr_db": UNREACHABLE_DB})
    assert not searched(casting)
    assert casting.plan.predicted.precisions["int8"] > 0
    assert not casting.check.passed


def test_linears_on_values_below_the_floor_of_run_time_scales_are_static() -> None:
    """Run-time scales are at least float32's epsilon: smaller values became zero, at 2 dB."""
    net, batches = deep(0)
    net = nn.Sequential(nn.Linear(24, 24, bias=False), nn.ReLU(), nn.Linear(24, 5, bias=False)).eval()
    tiny = [(1e-9 * x,) for (x,) in batches]
    casting = ingot.cast(net, tiny[0], target="xnnpack", calibration=tiny)
    assert not casting.plan.dynamic
    assert not searched(casting)
    assert casting.check.outputs[0].sqnr_db > 30


def test_float_on_the_host_is_the_last_resort_of_a_target_without_float() -> None:
    """Squares of rows that differ by a factor of thousand are below the step of any integer scale."""
    torch.manual_seed(0)
    sizes = torch.logspace(0, 4, 6)[:, None]
    net, batches = nn.LayerNorm(8).eval(), [(sizes * torch.randn(1, 6, 8),) for _ in range(6)]
    casts = {
        name: ingot.cast(
            net, batches[0], target=need("ethos-u85-256"), calibration=batches, recipe=recipe, on_mismatch="keep"
        )
        for name, recipe in {"given": {"noise_vs_latency": 64.0}, "searched": {}}.items()
    }
    assert not casts["given"].check.passed
    assert casts["searched"].check.passed
    assert searched(casts["searched"])
    assert {"float", "int8"} & casts["searched"].plan.predicted.precisions.keys()


def test_notes_are_those_of_the_plan_that_is_used() -> None:
    """The first plan runs all its linears in integers: what the solver says of it does not hold."""
    bar = cast({"min_sqnr_db": 0.0}).check.outputs[0].sqnr_db + 6
    casting = cast({"min_sqnr_db": bar})
    assert sum(note.startswith("range estimator") for note in casting.notes) == 1
    assert any("ops with weights stay float" in note for note in casting.notes)
