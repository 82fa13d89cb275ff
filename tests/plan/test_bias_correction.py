"""Bias correction: the bias compensates each channel's mean error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ingot
from ingot.plan.plan_data import Plan
from tests.support.shifted_net import recorded


def test_bias_correction_removes_the_mean_error() -> None:
    program, ranges, batches = recorded()
    recipe = {"range": "minmax", "correct_biases": False}
    plain = ingot.plan(program, ranges, "xnnpack", recipe=recipe)
    corrected = ingot.plan(program, ranges, "xnnpack", recipe={"range": "minmax"})
    assert not plain.bias_corrections
    assert corrected.bias_corrections
    before, after = (ingot.verify(ingot.lower(program, p), batches).outputs[0] for p in (plain, corrected))
    assert after.sqnr_db > before.sqnr_db + 6  # the mean was most of the error
    assert after.faithful_db > 40


def test_bias_corrections_are_explained_and_survive_json() -> None:
    program, ranges, _ = recorded()
    plan = ingot.plan(program, ranges, "xnnpack")
    name = next(iter(plan.bias_corrections))
    assert "bias correction up to" in plan.why(name)
    corrected = f"bias correction: {len(plan.bias_corrections)} ops"
    assert f"{corrected}; SQNR in simulated quantization on 16 batches" in plan.notes[-1]
    again = Plan.from_json(plan.to_json())
    assert again.bias_corrections == plan.bias_corrections
    assert not plan.diff(again)
    assert f"{name}: different bias correction" in plan.diff(replace(plan, bias_corrections={}))


def test_too_few_batches_correct_nothing() -> None:
    program, ranges, _ = recorded(count=3)
    assert not ingot.plan(program, ranges, "xnnpack").bias_corrections


@pytest.mark.parametrize(
    ("name", "correction", "says"),
    [
        ("nothing", (0.0,) * 8, "no such op with a bias"),
        ("relu", (0.0,) * 8, "no such op with a bias"),
        ("conv2d", (0.0,) * 3, "it needs 8 finite numbers"),
        ("conv2d", (float("nan"),) * 8, "it needs 8 finite numbers"),
    ],
)
def test_an_edited_bias_correction_is_checked(name: Any, correction: Any, says: Any) -> None:
    program, ranges, _ = recorded()
    plan = replace(ingot.plan(program, ranges, "xnnpack"), bias_corrections={name: correction})
    with pytest.raises(ingot.PlanError, match=says):
        ingot.lower(program, plan)
