"""Arm's targets: small nets planned, lowered, executed and compared."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import ingot
from ingot.plan.plan_data import Decision
from ingot.targets.registry import find_target
from ingot.verify.check import run_artefact, run_graph
from ingot.verify.metrics import measure
from tests.support.arm import ARM, BATCHES, Batches, assert_whole, cast, seeded, stored
from tests.support.requirements import need

SENTENCES: Batches = [(torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(i)),) for i in range(4)]


@pytest.fixture(params=ARM)
def target(request: pytest.FixtureRequest) -> str:
    return need(request.param)


class Net(nn.Module):
    """Two convolutions whose results are concatenated, which needs a requantize."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.linear = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.conv1(x).relu()
        both = torch.cat([first, self.conv2(first)], 1)
        return self.linear(torch.moveaxis(F.max_pool2d(both, 2), 1, -1)).sigmoid()


def test_a_small_net_is_one_delegate_and_right(target: str) -> None:
    casting = cast(Net(), target)
    assert_whole(casting)
    assert set(stored(casting.plan).values()) == {"float", "int8"}  # float: the graph's input, and inside relu(conv)
    assert casting.check.outputs[0].sqnr_db >= 30


class Requantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        r = self.conv1(x).relu()
        return torch.cat([r, x * 8], 1), self.conv2(r)


def test_a_requantize_before_a_cat_stays_inside() -> None:
    casting = cast(Requantized(), need("ethos-u55-128"))
    assert_whole(casting)
    assert casting.plan.qparams("relu") != casting.plan.qparams("cat", 0)
    assert min(o.sqnr_db for o in casting.check.outputs) >= 30


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.boxes, self.scores = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.stem(x).relu()
        return torch.cat([self.boxes(features).sigmoid() * 640, self.scores(features).sigmoid()], 1)


@pytest.mark.parametrize("name", ARM[:2])
def test_boxes_and_scores_in_one_output_are_both_right(name: str) -> None:
    casting = cast(Head(), need(name))
    assert_whole(casting)
    float_, made = both_runs(casting)
    for part in (slice(0, 8), slice(8, 16)):
        assert measure([t[:, part] for t in float_], [t[:, part] for t in made]).sqnr_db >= 30


def both_runs(casting: ingot.Casting) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    evidence = casting.evidence
    float_ = run_graph(evidence.program.reference, BATCHES, {})
    made = run_artefact(casting.pte, evidence, BATCHES)
    return [outputs[0] for outputs in float_], [outputs[0] for outputs in made]


class Join(nn.Module):
    def __init__(self, swap: bool) -> None:
        super().__init__()
        self.conv1, self.conv2, self.swap = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1), swap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.conv1(x), self.conv2(x)
        return torch.cat([two, one] if self.swap else [one, two], 1)


def test_int8_and_int16_meet_in_a_cat_and_their_order_does_not_matter() -> None:
    recipe = {"scopes": [{"path": "conv2", "precision": "int16"}]}
    castings = [cast(Join(swap), need("vgf"), recipe=recipe) for swap in (False, True)]
    for casting in castings:
        assert_whole(casting)
        assert casting.check.outputs[0].sqnr_db >= 30
    plans = [stored(c.plan) for c in castings]
    assert plans[0] == plans[1]
    assert {"int8", "int16"} <= set(plans[0].values())
    scales = [{n: c.plan.qparams(n) for n in ("conv2d", "conv2d_1", "cat")} for c in castings]
    assert scales[0] == scales[1]


class Counted(list):
    """Batches that count how often they are iterated."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


def test_one_recording_serves_every_target_and_precision() -> None:
    batches = Counted(BATCHES)
    program = ingot.capture(seeded(Net()), BATCHES[0])
    ranges = ingot.record(program, batches)
    for name in ("xnnpack", *(need(n) for n in ARM[:2])):
        for precision in ("int8", "int16", "float") if name in ARM else ("int8", "float"):
            plan = ingot.plan(program, ranges, name, recipe={"scopes": [{"op": "*", "precision": precision}]})
            assert set(stored(plan).values()) <= {precision, "float"}
            assert precision in stored(plan).values()
    assert batches.times == 1


@pytest.mark.parametrize("precision", ["int16", "float"])
def test_a_whole_net_in_another_precision(precision: str) -> None:
    casting = cast(Net(), need("vgf"), recipe={"scopes": [{"op": "*", "precision": precision}]})
    assert_whole(casting)
    assert casting.check.outputs[0].sqnr_db >= (40 if precision == "int16" else 100)


class Attention(nn.Module):
    def __init__(self, mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.mask = nn.LayerNorm(8), mask
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).transpose(1, 2)
        return x + self.mask(scores).softmax(-1) @ self.value(y)


HIDDEN = torch.ones(6, 6, dtype=torch.bool).triu(1)
MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda scores: scores,
    "-1e9 added": lambda scores: scores + torch.zeros(6, 6).masked_fill(HIDDEN, -1e9),
    "-inf filled in": lambda scores: scores.masked_fill(HIDDEN, -torch.inf),
}


@cache
def attention_db(mask: str) -> float:
    casting = cast(Attention(MASKS[mask]), need("ethos-u55-128"), SENTENCES)
    assert_whole(casting, faithful=40)
    return casting.check.outputs[0].sqnr_db


def test_attention_is_one_delegate_on_integers_alone() -> None:
    assert attention_db("none") >= 30


@pytest.mark.parametrize("mask", ["-1e9 added", "-inf filled in"])
def test_a_mask_does_not_widen_the_range_of_attention(mask: str) -> None:
    assert attention_db(mask) >= attention_db("none") - 3


class Twice(nn.Module):
    """After decomposition and retracing, the sum inside the norm has the name of the user's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + 1000.0


def test_a_value_of_a_rewrite_does_not_get_the_statistics_of_another() -> None:
    program = ingot.capture(seeded(Twice()), SENTENCES[0])
    plan = ingot.plan(program, ingot.record(program, SENTENCES), need("ethos-u55-128"))
    wide = [d for d in plan if d.qparams and d.qparams.axis is None and d.qparams.representable_range[1] > 900]
    assert {d.point.node for d in wide if d.point.operand is None} == {plan_output(plan)}


def plan_output(plan: ingot.Plan) -> str:
    return [d.point.node for d in plan if d.point.operand is None and d.qparams][-1]


def test_answers_of_the_partitioner_are_cached_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from ingot.targets.arm import answer_cache
    from ingot.targets.base import Ability

    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    known = {
        "an op": Ability(frozenset({"int8"}), "said so"),
        "another": Ability(frozenset(), answer_cache.FAILED + ": once"),
    }
    answer_cache.save_answers("vgf", known)
    assert answer_cache._read("vgf") == {"an op": known["an op"]}
    next(tmp_path.iterdir()).write_text("no JSON")
    assert answer_cache._read("vgf") == {}
    monkeypatch.setenv("INGOT_CACHE", "")
    assert answer_cache._file("vgf") is None


class IntegersBesideFloats(nn.Module):
    """Integer and boolean results of each kind: elementwise, reduced, scanned, compared; two results in a tuple."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.div(i * 3 + 1, 2, rounding_mode="floor").remainder(5).cumsum(1)
        return whole.sum(1), (i < 2) & (x > 0.5), x.argmax(1), x.topk(2)[1], x * x + whole


def test_the_partitioner_is_asked_about_float_results_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Integers between Q/DQ cannot be exported: such a query would fail, and be repeated in halves."""
    from ingot.targets.arm import ability
    from ingot.targets.arm.answer_cache import FAILED

    kernels: Any = find_target(need("ethos-u55-128")).kernels
    monkeypatch.setattr(ability, "cached_answers", cache(lambda profile: {}))
    monkeypatch.setenv("INGOT_CACHE", "")
    queries, query = list[ability.Ops](), ability._query

    def noted(device: Any, ops: ability.Ops) -> Any:
        queries.append(ops)
        return query(device, ops)

    monkeypatch.setattr(ability, "_query", noted)
    program = ingot.capture(IntegersBesideFloats(), (torch.randn(2, 4), torch.randint(0, 9, (2, 4))))
    nodes = [n for n in program.module.graph.nodes if n.op == "call_function"]
    said = {n.name: kernels.ability(n) for n in nodes}
    assert len(queries) == 1
    assert not [a.because for a in said.values() if a.because.startswith(FAILED)]
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
    assert any(a.runs for a in said.values())


def test_listing_the_targets_imports_no_backend() -> None:
    code = "import sys, ingot; ingot.targets(); print([m for m in sys.modules if m.startswith('executorch')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Product(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.tanh(), x.sigmoid())


def test_the_requantize_multiplier_of_a_matmul_has_15_bits() -> None:
    batches = [(torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(i)),) for i in range(3)]
    program = ingot.capture(Product(), batches[0])
    recipe = {"scopes": [{"op": "*", "precision": "int16"}]}
    plan = ingot.plan(program, ingot.record(program, batches), need("ethos-u85-256"), recipe=recipe)
    a, b, out = (plan.qparams("bmm", i).scale for i in (0, 1, None))
    mantissa = math.frexp(a * b / out)[0] * 2**15
    assert abs(mantissa - round(mantissa)) < 2**-6


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 192, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum(-1, keepdim=True)


@pytest.mark.parametrize(("name", "zero", "other"), [("ethos-u55-128", -1, 0), ("ethos-u85-256", 0, -1)])
def test_the_input_of_a_sum_has_the_zero_point_that_is_faster(name: str, zero: int, other: int) -> None:
    x = torch.randn(1, 17, 64, generator=torch.Generator().manual_seed(0))
    program = ingot.capture(seeded(Sums()), (x,))
    plan = ingot.plan(program, ingot.record(program, [(x,), (-x,)]), need(name))
    assert plan.qparams("linear").zero_point == zero
    plans = plan, with_zero_point(plan, "linear", other)
    estimates: list[Any] = [ingot.lower(program, p).performance[0] for p in plans]
    cycles = [e.cycles for e in estimates]
    assert cycles[0] < cycles[1]


def with_zero_point(plan: ingot.Plan, value: str, zero: int) -> ingot.Plan:
    """The plan with another zero point of a value, at its producer and at its consumers."""

    def moved(d: Decision) -> Decision:
        here = value in (d.reads, d.point.node) and (d.point.operand is None or d.reads == value)
        return replace(d, qparams=replace(d.qparams, zero_point=zero)) if here else d

    return replace(plan, decisions=tuple(map(moved, plan)))
