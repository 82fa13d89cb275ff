"""The audit: a constant of the quantized graph has the numbers of the one that was planned, rounded as planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import ingot
from ingot.config.recipe import Recipe
from ingot.core.fx import constant_of, get_attribute
from ingot.plan.plan_data import Plan
from ingot.quantize import pt2e
from ingot.quantize.audit import _equal, audit
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target


class Net(nn.Module):
    """Constants of one shape, in integers and in float: weights, biases, operands of an add."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("p", torch.randn(1, 8))
        self.register_buffer("q", torch.randn(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin((self.b(self.a(x).relu()) + self.p) * self.q)


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> tuple[GraphModule, GraphModule, Plan, Any]:
    """What `quantize` hands to the audit."""
    batches = [(torch.randn(2, 8),) for _ in range(4)]
    program = ingot.capture(Net().eval(), batches[0])
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack")
    form = rewrite_for(program, find_target("xnnpack"), Recipe()).program
    seen: list[Any] = []
    monkeypatch.setattr(pt2e, "audit", lambda *args: seen.extend(args))
    pt2e.quantize(form.module, plan, float_bias=True)
    return tuple(seen)  # type: ignore[return-value]


def constants(module: GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if constant_of(n) is not None and constant_of(n).dim() > 0]  # type: ignore[union-attr]


def test_what_was_planned_passes(audited: Any) -> None:
    audit(*audited)


def swapped(module: GraphModule, one: str, other: str) -> None:
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target in (one, other):
            node.target = other if node.target == one else one


def test_swapped_constants_of_one_shape_are_caught(audited: Any) -> None:
    """Every pair of equal shape and type: weights in integers, biases and operands in float."""
    converted, names = audited[0], constants(audited[0])
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if _alike(converted, a, b)]
    weights = [a for a, _ in pairs if get_attribute(converted, a).dtype == torch.int8]
    others = [a for a, _ in pairs if get_attribute(converted, a).dtype == torch.float32]
    assert weights
    assert others
    for pair in pairs:
        swapped(converted, *pair)
        with pytest.raises(ingot.PlanError, match="differs from the plan"):
            audit(*audited)
        swapped(converted, *pair)
    audit(*audited)


def _alike(module: GraphModule, one: str, other: str) -> bool:
    a, b = get_attribute(module, one), get_attribute(module, other)
    return a.shape == b.shape and a.dtype == b.dtype and not torch.equal(a, b)


def _turned(codes: torch.Tensor) -> None:
    codes[0] += 1


@pytest.mark.parametrize("change", [_turned, lambda c: c.neg_(), lambda c: c.zero_()])
def test_a_changed_weight_is_caught(audited: Any, change: Callable[[torch.Tensor], Any]) -> None:
    converted = audited[0]
    name = next(n for n in constants(converted) if get_attribute(converted, n).dtype == torch.int8)
    with torch.no_grad():
        change(get_attribute(converted, name))
    with pytest.raises(ingot.PlanError, match="other numbers"):
        audit(*audited)


def test_a_constant_that_is_no_number_is_itself() -> None:
    nan, inf = torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("inf")])
    assert _equal(nan, nan.clone())
    assert _equal(inf, inf.clone())
    assert not _equal(nan, torch.tensor([1.0, 2.0]))
    assert not _equal(inf, -inf)
