"""The search over range estimators by simulated quantization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import ingot
from ingot.plan.estimator_search import CANDIDATE_ESTIMATORS, best_plan
from ingot.plan.simulated_quantization import Simulation
from tests.support.shifted_net import recorded


def test_the_clearly_better_plan_is_taken_and_a_tie_goes_to_the_first() -> None:
    program, ranges, _ = recorded()
    good = ingot.plan(program, ranges, "xnnpack", recipe={"range": "minmax", "correct_biases": False})
    coarse = replace(good, decisions=tuple(map(_coarse, good.decisions)))
    module, kept = ingot.lower(program, good).evidence.program.module, ranges.cached_batches
    with torch.no_grad():
        best = best_plan({"coarse": coarse, "good": good}, module, kept, correct_biases=False)
        tie = best_plan({"first": good, "second": good}, module, kept, correct_biases=False)
    assert best.decisions == good.decisions
    assert "range estimator: first;" in tie.notes[-1]


def _coarse(d: Any) -> Any:
    per_tensor = d.qparams is not None and d.qparams.axis is None and d.qparams.dtype == "int8"
    return replace(d, qparams=replace(d.qparams, scale=d.qparams.scale * 64)) if per_tensor else d


def test_the_simulation_computes_what_the_quantized_graph_does() -> None:
    program, ranges, batches = recorded()
    plan = ingot.plan(program, ranges, "xnnpack", recipe={"correct_biases": False})
    casting = ingot.lower(program, plan)
    flat = [program.flatten(b) for b in batches]
    module = casting.evidence.program.module
    with torch.no_grad():
        outputs, _ = Simulation.of(module, flat).run(plan, correct_biases=False)
        expected = [casting.evidence.quantized(*b) for b in flat]
    for (got,), want in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, torch.utils._pytree.tree_leaves(want)[0], atol=1e-5, rtol=1e-5)


def test_every_estimator_of_the_search_can_be_requested() -> None:
    program, ranges, _ = recorded()
    for estimator in CANDIDATE_ESTIMATORS:
        assert ingot.plan(program, ranges, "xnnpack", recipe={"range": estimator}).decisions
    with pytest.raises(ingot.InputError, match="mse:x with x over 0"):
        ingot.plan(program, ranges, "xnnpack", recipe={"range": "mse:-1"})
