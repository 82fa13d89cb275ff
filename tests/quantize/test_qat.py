"""QAT: the loss falls, shared scales stay shared, and the trained program lowers and verifies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import ingot
from ingot.capture.op_semantics import effect_of
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import calls, constant_of
from ingot.plan.plan_data import Plan
from tests.support.digits import digits, fitted


@pytest.fixture(scope="module")
def trained() -> tuple[ingot.Program, Plan, ingot.Program, Plan, float, float]:
    x, y = digits()
    batches = [(x[i : i + 16],) for i in range(0, 256, 16)]
    program = ingot.capture(fitted(x, y), batches[0])
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack", recipe={"noise_vs_latency": 0.0})
    training = ingot.train(program, plan)
    optimizer, losses = torch.optim.Adam(training.parameters(), lr=3e-3), []
    for i in range(80):
        pick = torch.arange(i * 16, i * 16 + 16) % 1488
        loss = nn.functional.cross_entropy(training(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return program, plan, *training.finish(), sum(losses[:10]), sum(losses[-10:])


def test_training_learns(trained: Any) -> None:
    *_, first, last = trained
    assert last < 0.8 * first


def test_scale_groups_stay_together(trained: Any) -> None:
    _, before, _, after, *_ = trained
    read = [d for d in before if d.rule == "same qparams as the producer"]
    assert len(read) > 4
    for d in read:
        assert after.qparams(d.point.node, d.point.operand) == after.qparams(d.reads)
    assert before.qparams("add") != after.qparams("add")  # their ranges follow the training data


def test_ops_that_move_data_keep_their_qparams(trained: Any) -> None:
    _, _, program, plan, *_ = trained
    moved = [n for n in calls(program.module) if weight_axis(n) is None and plan.qparams(n.name)]
    for node in moved:
        for i in effect_of(node, constant_of).carriers:
            assert plan.qparams(node.name, i) in (plan.qparams(node.name), None)


def test_the_trained_program_lowers_and_runs(trained: Any) -> None:
    program, _, after, plan, *_ = trained
    x, _ = digits()
    casting = ingot.lower(after, plan)
    check = ingot.verify(casting, [(x[i : i + 16],) for i in range(1504, 1600, 16)])
    assert check.passed
    assert check.outputs[0].faithful_db > 40
    assert len(casting.delegates) == 1
    weights = [constant_of(n) for n in after.module.graph.nodes if n.op == "get_attr"]
    assert not all(any(torch.equal(w, v) for v in program.module.state_dict().values()) for w in weights)


class Joined(nn.Module):
    """Two quantization points of one scale group, one with five times the range of the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(1, 3, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([torch.relu(self.first(x)) * 0.2, x * 5.0], 1))


def test_a_scale_group_covers_all_of_its_points_and_fixed_qparams_stay() -> None:
    batches = [(torch.randn(2, 1, 6, 6),) for _ in range(4)]
    program = ingot.capture(Joined().eval(), batches[0])
    recipe = {"inputs": [{"dtype": "int8", "scale": 0.03}], "scopes": [{"op": "cat", "precision": "int8"}]}
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack", recipe=recipe)
    training = ingot.train(program, plan)
    for _ in range(300):
        training(*batches[0])
    _, after = training.finish()
    assert after.qparams("x") == plan.qparams("x")
    assert after.qparams("cat").scale > 0.5 * plan.qparams("cat").scale


def test_tied_weights_stay_tied() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    batches = [(torch.randn(3, 4),) for _ in range(3)]
    program = ingot.capture(nn.Sequential(first, nn.Tanh(), second).eval(), batches[0])
    training = ingot.train(program, ingot.plan(program, ingot.record(program, batches), "xnnpack"))
    optimizer = torch.optim.SGD(training.parameters(), lr=0.1)
    for _ in range(5):
        training(*batches[0]).square().sum().backward()
        optimizer.step()
    trained, plan = training.finish()
    weights = [
        w
        for n in trained.module.graph.nodes
        if n.op == "get_attr" and (w := constant_of(n)) is not None and w.dim() == 2
    ]
    assert len(weights) == 2
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], first.weight)
    assert ingot.lower(trained, plan).delegates


def test_a_norm_and_a_position_train_and_lower() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 4)
            self.position = nn.Parameter(torch.randn(5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(x) + self.position)

    batches = [(torch.randn(1, 5, 8),) for _ in range(4)]
    program = ingot.capture(Embedded().eval(), batches[0])
    training = ingot.train(program, ingot.plan(program, ingot.record(program, batches), "xnnpack"))
    assert ingot.verify(ingot.lower(*training.finish()), batches).passed


def test_a_program_with_state_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.register_buffer("h", torch.zeros(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x) + self.h
            self.h.copy_(y)
            return y

    batches = [(torch.randn(1, 4),) for _ in range(3)]
    program = ingot.capture(Counts().eval(), batches[0])
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack")
    with pytest.raises(ingot.PlanError, match="a program with state cannot be trained"):
        ingot.train(program, plan)
