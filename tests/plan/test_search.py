"""Choosing ranges by running the plan, and biases that take back a mean error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.plan.model import Plan
from ingot.plan.search import METHODS, Stage, rehearsed


class Net(nn.Module):
    """Weights that lie just above the middle between two steps: rounding moves every channel the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        with torch.no_grad():
            self.first.weight.copy_((torch.randint(-60, 60, self.first.weight.shape) + 0.4) / 127)
            self.first.weight[:, 0, 0, 0] = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu().mean((2, 3)))


def _made(count: int = 16) -> tuple[ingot.Program, ingot.Ranges, list[tuple[torch.Tensor]]]:
    torch.manual_seed(0)
    batches = [(torch.rand(1, 3, 8, 8),) for _ in range(count)]
    program = ingot.capture(Net(), batches[0])
    return program, ingot.record(program, batches), batches


def test_a_bias_takes_back_what_rounding_moves() -> None:
    program, ranges, batches = _made()
    recipe = {"range": "minmax", "correct_biases": False}
    plain = ingot.plan(program, ranges, "xnnpack", recipe=recipe)
    corrected = ingot.plan(program, ranges, "xnnpack", recipe={"range": "minmax"})
    assert not plain.bias_corrections
    assert corrected.bias_corrections
    before, after = (ingot.verify(ingot.lower(program, p), batches).outputs[0] for p in (plain, corrected))
    assert after.sqnr_db > before.sqnr_db + 6  # the mean was most of the error
    assert after.faithful_db > 40


def test_the_plan_says_what_it_moved_and_survives_json() -> None:
    program, ranges, _ = _made()
    plan = ingot.plan(program, ranges, "xnnpack")
    name = next(iter(plan.bias_corrections))
    assert "its bias moves by up to" in plan.why(name)
    assert "biases corrected, after a rehearsal on 16 batches" in plan.notes[-1]
    again = Plan.from_json(plan.to_json())
    assert again.bias_corrections == plan.bias_corrections
    assert not plan.diff(again)
    assert f"{name}: its bias moves otherwise" in plan.diff(replace(plan, bias_corrections={}))


def test_too_few_batches_teach_nothing() -> None:
    program, ranges, _ = _made(count=3)
    assert not ingot.plan(program, ranges, "xnnpack").bias_corrections


@pytest.mark.parametrize(
    ("name", "shift", "says"),
    [
        ("nothing", (0.0,) * 8, "no such op with a bias"),
        ("relu", (0.0,) * 8, "no such op with a bias"),
        ("conv2d", (0.0,) * 3, "it wants 8 finite numbers"),
        ("conv2d", (float("nan"),) * 8, "it wants 8 finite numbers"),
    ],
)
def test_an_edited_shift_is_checked(name: Any, shift: Any, says: Any) -> None:
    program, ranges, _ = _made()
    plan = replace(ingot.plan(program, ranges, "xnnpack"), bias_corrections={name: shift})
    with pytest.raises(ingot.PlanError, match=says):
        ingot.lower(program, plan)


def test_the_clearly_better_plan_is_taken_and_a_tie_goes_to_the_first() -> None:
    program, ranges, _ = _made()
    good = ingot.plan(program, ranges, "xnnpack", recipe={"range": "minmax", "correct_biases": False})
    coarse = replace(good, decisions=tuple(map(_coarse, good.decisions)))
    module, kept = ingot.lower(program, good).evidence.program.module, ranges.kept
    with torch.no_grad():
        assert rehearsed({"coarse": coarse, "good": good}, module, kept, correct=False).decisions == good.decisions
        tie = rehearsed({"first": good, "second": good}, module, kept, correct=False)
    assert "ranges by first" in tie.notes[-1]


def _coarse(d: Any) -> Any:
    per_tensor = d.qparams is not None and d.qparams.axis is None and d.qparams.dtype == "int8"
    return replace(d, qparams=replace(d.qparams, scale=d.qparams.scale * 64)) if per_tensor else d


def test_a_rehearsal_is_what_the_quantized_graph_computes() -> None:
    program, ranges, batches = _made()
    plan = ingot.plan(program, ranges, "xnnpack", recipe={"correct_biases": False})
    casting = ingot.lower(program, plan)
    flat = [program.flatten(b) for b in batches]
    module = casting.evidence.program.module
    with torch.no_grad():
        outputs, _ = Stage.of(module, flat).perform(plan, correct=False)
        expected = [casting.evidence.quantized(*b) for b in flat]
    for (got,), want in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, torch.utils._pytree.tree_leaves(want)[0], atol=1e-5, rtol=1e-5)


def test_every_method_of_the_search_can_be_asked_for() -> None:
    program, ranges, _ = _made()
    for method in METHODS:
        assert ingot.plan(program, ranges, "xnnpack", recipe={"range": method}).decisions
    with pytest.raises(ingot.InputError, match="mse:x with x over 0"):
        ingot.plan(program, ranges, "xnnpack", recipe={"range": "mse:-1"})
