"""The plan as data, simple plans, and the audit of the graph that PT2E makes of a plan."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn as nn
from hypothesis import given
from hypothesis import strategies as st

import ingot
from ingot.capture.op_semantics import Kind, effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, constant_of
from ingot.plan.plan_data import Plan, QParams, QuantizationPoint
from ingot.plan.qparams import qparams_for
from ingot.quantize.audit import audit
from ingot.quantize.pt2e import quantize
from ingot.rewrite.apply import rewrite_for
from ingot.targets.base import Format
from ingot.targets.registry import find_target

INT8 = Format("int8", -128, 127, symmetric=False)


class Skip(nn.Module):
    """A cat reads r = relu(conv(x)) and x; if `other_reader`, a convolution reads r too."""

    def __init__(self, other_reader: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.head, self.side = nn.Conv2d(3, 3, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(3, 4, 1)
        self.other = other_reader

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        r = (self.conv(x) * 1.0).relu()
        joined = self.head(torch.cat([r, x * 8], 1))
        return joined + self.side(r) if self.other else joined


def plan_of(model: nn.Module, *inputs: torch.Tensor) -> tuple[ingot.Program, Plan]:
    torch.manual_seed(2)
    batches = [tuple(torch.randn_like(x) for x in inputs) for _ in range(3)]
    program = ingot.capture(model.eval(), batches[0])
    return program, ingot.plan(program, ingot.record(program, batches), "xnnpack")


IMAGE = torch.zeros(1, 3, 8, 8)


def test_a_cat_requantizes_what_has_a_finer_scale_for_other_consumers() -> None:
    _, plan = plan_of(Skip(True), IMAGE)
    assert plan.qparams("relu").zero_point == -128
    assert plan.qparams("cat", 0) == plan.qparams("cat", 1) == plan.qparams("cat")
    assert plan.qparams("cat", 0).scale > 2 * plan.qparams("relu").scale
    assert "bits of resolution for the other consumers of relu" in plan.why("cat")


def test_a_cat_that_is_the_only_consumer_shares_the_scale() -> None:
    _, plan = plan_of(Skip(False), IMAGE)
    assert plan.qparams("relu") == plan.qparams("cat")


def test_ops_that_move_values_keep_the_qparams() -> None:
    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.roll(self.a(x).moveaxis(1, 2), 1, 1)
            return self.b(y[:, 2:].reshape(1, 2, 2, 4))

    program, plan = plan_of(Moves(), torch.zeros(1, 4, 6))
    movers = [n for n in calls(program.module) if weight_axis(n) is None]
    assert {str(n.target).split(".")[1] for n in movers} >= {"permute", "cat", "slice", "reshape"}
    for node in movers:
        assert effect_of(node, constant_of).kind is Kind.MOVES
        points = [plan.qparams(node.name), *(plan.qparams(node.name, i) for i in range(len(operands(node))))]
        assert points[0] is not None
        assert set(points) == {points[0]}


def test_json_round_trip() -> None:
    _, plan = plan_of(Skip(True), IMAGE)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert plan.diff(again) == ""


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1}', '{"version": 99}', "[" * 100_000])
def test_foreign_json_is_refused(text: str) -> None:
    with pytest.raises(ingot.InputError):
        Plan.from_json(text)


def test_why_offers_the_nearest_name() -> None:
    _, plan = plan_of(Skip(True), IMAGE)
    with pytest.raises(ingot.PlanError, match="did you mean 'relu'"):
        plan.why("rellu")


def test_plans_of_other_programs_are_refused() -> None:
    program, plan = plan_of(Skip(True), IMAGE)
    other, _ = plan_of(Skip(False), IMAGE)
    with pytest.raises(ingot.PlanError, match="another program"):
        ingot.lower(other, plan)
    with pytest.raises(ingot.PlanError, match="another program"):
        ingot.plan(other, ingot.record(program, [(IMAGE,)]), "xnnpack")


def changed(plan: Plan, point: QuantizationPoint, qparams: QParams | None) -> Plan:
    decisions = tuple(dataclasses.replace(d, qparams=qparams) if d.point == point else d for d in plan)
    return dataclasses.replace(plan, decisions=decisions)


OTHER = QParams("int8", 0.123, 3, -128, 127)


@pytest.mark.parametrize(
    ("point", "wrong"),
    [
        (QuantizationPoint("cat"), OTHER),
        (QuantizationPoint("cat", 0), OTHER),
        (QuantizationPoint("cat", 0), None),
        (QuantizationPoint("conv2d", 1), OTHER),
        (QuantizationPoint("conv2d", 1), None),
        (QuantizationPoint("conv2d_1", 0), OTHER),
        (QuantizationPoint("x"), OTHER),
    ],
)
def test_the_audit_sees_every_kind_of_difference(point: QuantizationPoint, wrong: QParams | None) -> None:
    program, plan = plan_of(Skip(True), IMAGE)
    module = rewrite_for(program, find_target("xnnpack"), Recipe()).program.module
    made = quantize(module, plan, float_bias=True)
    without_bias = [d for d in plan if not (d.qparams and d.qparams.dtype == "int32")]
    plain = dataclasses.replace(plan, decisions=tuple(without_bias))
    audit(made, module, plain, {})
    with pytest.raises(ingot.PlanError, match="differs from the plan"):
        audit(made, module, changed(plain, point, wrong), {})


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.booleans())
def test_zero_is_exact_and_the_range_is_covered(a: float, b: float, symmetric: bool) -> None:
    form = Format("int8", -127 if symmetric else -128, 127, symmetric)
    low, high = min(a, b), max(a, b)
    s = qparams_for(low, high, form)
    assert s.qmin <= s.zero_point <= s.qmax
    assert torch.tensor(s.scale, dtype=torch.float32).item() == s.scale
    slack = s.scale * 0.51
    assert (s.qmin - s.zero_point) * s.scale <= min(low, 0) + slack
    assert (s.qmax - s.zero_point) * s.scale >= max(high, 0) - slack
