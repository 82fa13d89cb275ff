"""A wrong artefact never passes: every known way of being wrong is detected and named."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn as nn

import ingot
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check, OutputCheck
from ingot.core.run_batched import run_batched
from ingot.plan.plan_data import QuantizationPoint
from ingot.targets.base import Runner
from ingot.verify.check import disagrees_with_graph
from ingot.verify.metrics import measure, sqnr


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).tanh())


BATCHES = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(3)]


@cache
def good() -> tuple[ingot.Program, ingot.Casting]:
    program = ingot.capture(Net().eval(), BATCHES[0])
    plan = ingot.plan(program, ingot.record(program, BATCHES), "xnnpack")
    return program, ingot.lower(program, plan)


def test_a_good_one_passes() -> None:
    check = ingot.verify(good()[1], BATCHES)
    assert check.passed
    assert check.culprit is None
    assert check.batches == 3


def test_a_ruinous_plan_is_a_mismatch_with_a_culprit() -> None:
    program, casting = good()
    ruined = tuple(
        dataclasses.replace(d, qparams=dataclasses.replace(d.qparams, scale=d.qparams.scale * 40))
        if d.point in (QuantizationPoint("conv2d"), QuantizationPoint("conv2d_1", 0))
        else d
        for d in casting.plan
    )
    bad = ingot.lower(program, dataclasses.replace(casting.plan, decisions=ruined))
    check = ingot.verify(bad, BATCHES)
    assert not check.passed
    assert "far from the float model" in check.outputs[0].problem
    assert check.culprit.startswith("conv2d (")


def test_an_artefact_of_other_weights_is_caught() -> None:
    _, casting = good()
    with torch.no_grad():
        other = Net()
        other.b.weight.neg_()
    swapped = ingot.cast(other.eval(), BATCHES[0], target="xnnpack", calibration=BATCHES)
    check = ingot.verify(dataclasses.replace(casting, pte=swapped.pte), BATCHES)
    assert not check.passed
    assert "artefact and quantized graph disagree: SQNR" in check.outputs[0].problem


def test_cast_raises_and_the_error_carries_the_check() -> None:
    strict = {"min_sqnr_db": 90.0}
    with pytest.raises(ingot.MismatchError, match=r"far from the float model.*threshold 90 dB") as caught:
        ingot.cast(Net().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES, recipe=strict)
    check: Any = caught.value.check
    assert not check.passed


@pytest.mark.parametrize("damage", [lambda p: p[: len(p) // 2], lambda p: b"", lambda p: b"x" * len(p)])
def test_a_damaged_file_is_an_error_with_a_hint(damage: Any) -> None:
    casting = dataclasses.replace(good()[1], pte=damage(good()[1].pte))
    with pytest.raises(ingot.ArtefactError, match="try:"):
        ingot.verify(casting, BATCHES)


def test_dead_and_non_finite_outputs_are_defects() -> None:
    want = [torch.randn(1, 4, 8)]
    assert "dead" in measure(want, [torch.full((1, 4, 8), 0.25)]).defect
    assert "non-finite" in measure(want, [torch.where(want[0] > 1, torch.nan, want[0])]).defect
    assert "shape" in measure(want, [torch.randn(1, 8, 4)]).defect
    assert measure(want, want).defect is None


class Rerouted(Runner):
    """A runtime that returns something else than the program computes."""

    def __init__(self, runner: Any, change: Any) -> None:
        self.runner, self.change = runner, change

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return [self.change(list(outputs)) for outputs in self.runner.run(*args, **kwargs)]

    def executed_on(self) -> str:
        return "a wrong runtime"


def rerouted(casting: ingot.Casting, change: Any) -> ingot.Casting:
    evidence = casting.needed_evidence
    target = dataclasses.replace(evidence.target, runner=Rerouted(evidence.target.runner, change))
    return dataclasses.replace(casting, evidence=dataclasses.replace(evidence, target=target))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: o[:-1], "the artefact returns 0 outputs, the float model 1"),
        (lambda o: o * 2, "the artefact returns 2 outputs, the float model 1"),
        (lambda o: [o[0].double()], "dtype torch.float64 instead of torch.float32"),
        (lambda o: [o[0].flip(1)], "artefact and quantized graph disagree"),
        (lambda o: [o[0].transpose(2, 3)], "artefact and quantized graph disagree"),
    ],
    ids=["none", "two", "double", "channels in reverse", "transposed"],
)
def test_what_a_wrong_runtime_returns_is_a_verdict(change: Any, words: str) -> None:
    check = ingot.verify(rerouted(good()[1], change), BATCHES)
    assert not check.passed
    assert words in check.outputs[0].problem
    assert check.outputs[0].disagrees


class Labels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.b(self.a(x).relu())
        return y.argmax(1), y > 0.1


@cache
def labels() -> ingot.Casting:
    return ingot.cast(Labels().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES)


def one_pixel(o: list[torch.Tensor]) -> list[torch.Tensor]:
    """A pixel far from a tie gets another class."""
    o[0] = o[0].clone()
    o[0][0, 2, 2] = (o[0][0, 2, 2] + 2) % 4
    return o


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (lambda o: [o[0].int(), o[1]], 0, "dtype torch.int32 instead of torch.int64"),
        (lambda o: [o[0], ~o[1]], 1, "integers differ where the graph is not near a tie"),
        (lambda o: [3 - o[0], o[1]], 0, "integers differ where the graph is not near a tie"),
        (one_pixel, 0, "integers differ where the graph is not near a tie"),
    ],
    ids=["int32", "mask inverted", "classes in reverse", "one pixel"],
)
def test_integer_outputs_are_exact(change: Any, place: int, words: str) -> None:
    assert labels().check.passed
    check = ingot.verify(rerouted(labels(), change), BATCHES)
    assert [o.problem is None for o in check.outputs] == [i != place for i in range(2)]
    assert words in check.outputs[place].problem


def test_a_graph_in_float32_is_said() -> None:
    evidence = dataclasses.replace(good()[1].needed_evidence, in_double=False)
    check = ingot.verify(dataclasses.replace(good()[1], evidence=evidence), BATCHES)
    assert check.passed
    assert "evaluated in float32" in check.notes[0]
    assert ingot.verify(good()[1], BATCHES).notes == ()


def test_sqnr_is_what_it_says() -> None:
    signal = torch.ones(1000, dtype=torch.float64)
    assert sqnr(signal, signal * 1.1) == pytest.approx(20.0)


def test_batched_runs_equal_single_runs() -> None:
    """Also with weights dequantized per row and an embedding looked up per row."""
    from ingot.weight_only.options import weights_from
    from ingot.weight_only.quantize_weights import quantize_weights

    class Net(torch.nn.Module):
        def __init__(self, words: int) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(words, 64), torch.nn.Linear(64, words, bias=words < 100)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens).relu())

    torch.manual_seed(0)
    batches = [(torch.randint(50, (1, 5)),) for _ in range(3)]
    for bits, words in ((4, 50), (8, 50), (8, 20_000)):
        program = ingot.capture(Net(words).eval(), batches[0])
        asked = weights_from({"scheme": "8da4w", "embedding_bits": bits, "head_bits": bits})
        made = quantize_weights(program.module, asked, []).apply_to(program.module)
        with torch.no_grad():
            alone = [made(*b) for b in batches]
        for a, b in zip(run_batched(made, batches), alone, strict=True):
            assert torch.equal(a[0], b[0])


@pytest.mark.parametrize(("to_float", "to_graph", "left"), [(0.1, 56.0, False), (4.0, 5.0, True), (8.0, 80.0, False)])
def test_rounding_is_not_the_backends_fault(to_float: float, to_graph: float, left: bool) -> None:
    """An artefact that agrees with a graph that is too coarse is not a backend error."""
    output = OutputCheck("out", to_float, 1.0, to_float, to_graph, "far from the float model")
    assert disagrees_with_graph(Check("here", 1, (output,), passed=False), Recipe()) is left


class Another(nn.Module):
    """A program with outputs of other number or type than the model's."""

    def __init__(self, run: Any):
        super().__init__()
        self.net, self.run = Net(), run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self.net(x).argmax(1))


def test_int32_where_the_model_gives_int64_is_wrong() -> None:
    """The numbers are the same, their bytes are not."""
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(3)]
    right, wrong = (
        ingot.cast(Another(run).eval(), batches[0], target="xnnpack", calibration=batches)
        for run in (lambda y: y, lambda y: y.int())
    )
    assert right.check is not None
    assert right.check.passed
    check = ingot.verify(dataclasses.replace(right, pte=wrong.pte), batches)
    assert check.outputs[0].problem == "dtype torch.int32 instead of torch.int64"


def test_another_number_of_outputs_is_a_verdict() -> None:
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(3)]
    one, two = (
        ingot.cast(Another(run).eval(), batches[0], target="xnnpack", calibration=batches)
        for run in (lambda y: y, lambda y: (y, y + 1))
    )
    wrong = dataclasses.replace(one, pte=two.pte)
    check = ingot.verify(wrong, batches)
    assert not check.passed
    assert check.outputs[0].problem == "the artefact returns 2 outputs, the float model 1"
    with pytest.raises(ingot.ArtefactError, match=r"gives 2 outputs .* lowered with 1"):
        ingot.localize(wrong, batches)
