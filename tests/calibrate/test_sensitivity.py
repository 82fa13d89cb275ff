"""Sensitivity goes through ops with several results; where an op has no gradient, a note says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.calibrate.statistics import NO_GRADIENT

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Something between two linears."""

    def __init__(self, middle: Any):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.middle = nn.Linear(8, 16), nn.Linear(4, 4), middle
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self, torch.tanh(self.first(x)).reshape(2, 4, 4)))


def record(middle: Any) -> ingot.Ranges:
    program = ingot.capture(Net(middle).eval(), (X,))
    return ingot.record(program, [(X,)])


# One op with several results, and the same function with ops that have one.
PAIRS = {
    "max": (lambda s, y: y.max(1)[0], lambda s, y: y.amax(1)),
    "min": (lambda s, y: y.min(1).values, lambda s, y: y.amin(1)),
    "split": (lambda s, y: y.split(2, 1)[1][:, 0], lambda s, y: y[:, 2]),
    "split, all parts": (lambda s, y: sum(y.split(1, 1)).squeeze(1), lambda s, y: y.sum(1)),
    "unbind": (lambda s, y: y.unbind(1)[3], lambda s, y: y[:, 3]),
    "chunk": (lambda s, y: y.chunk(4, 1)[0].squeeze(1), lambda s, y: y[:, 0]),
    "var_mean": (lambda s, y: y.mean(2) + torch.var_mean(y, 2)[1], lambda s, y: 2 * y.mean(2)),
    "var_mean, both": (lambda s, y: sum(torch.var_mean(y, 2)), lambda s, y: y.var(2) + y.mean(2)),
    "sort": (lambda s, y: y.sort(1)[0][:, 3], lambda s, y: y.amax(1)),
    "topk": (lambda s, y: y.topk(1, 1)[0].squeeze(1), lambda s, y: y.amax(1)),
    "one result twice": (lambda s, y: (lambda p: p[0] + p[0])(y.max(1)), lambda s, y: 2 * y.amax(1)),
    "batch norm": (lambda s, y: s.norm(y)[:, 1], lambda s, y: (y / (1 + s.norm.eps) ** 0.5)[:, 1]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_an_op_with_several_results_is_no_end(name: str) -> None:
    several, one = (record(middle) for middle in PAIRS[name])
    assert several.sensitivity["tanh"] == pytest.approx(one.sensitivity["tanh"], rel=1e-3)
    assert several.sensitivity["x"] == pytest.approx(one.sensitivity["x"], rel=1e-3)
    assert not any(NO_GRADIENT in n for n in several.notes)


@torch.library.custom_op("ingot_test::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_op_without_a_gradient_is_named(tmp_path: Path) -> None:
    ranges = record(lambda s, y: torch.ops.ingot_test.halved(y)[:, 0])
    note = next(n for n in ranges.notes if NO_GRADIENT in n)
    assert "halved" in note
    assert "tanh" not in ranges.sensitivity
    ranges.save(tmp_path / "ranges.json")
    assert note in ingot.Ranges.load(tmp_path / "ranges.json").notes
    assert note in ranges.merge(ranges).notes


def test_integers_end_no_sensitivity_that_is_missed() -> None:
    """An argmax has no gradient in truth: rounding before it changes nothing or everything."""
    ranges = record(lambda s, y: y[:, 0] + y.argmax(1))
    assert not any(NO_GRADIENT in n for n in ranges.notes)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(torch.tanh(x))
        return self.total * 2


def test_state_gets_no_gradient() -> None:
    """An op that writes is run without one: the buffer would keep it."""
    program = ingot.capture(Counter().eval(), (X,))
    ranges = ingot.record(program, [(X,), (X,)])
    assert not any(b.requires_grad for b in program.module.buffers())
    assert ranges.values["mul"].max == pytest.approx(float(torch.tanh(X).max()) * 4, rel=1e-5)


class Decided(nn.Module):
    """Ends in numbers, or in what they decide."""

    def __init__(self, decide: Any):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.decide = nn.Linear(8, 16), nn.Linear(16, 4), decide

    def forward(self, x: torch.Tensor) -> Any:
        return self.decide(self.last(torch.tanh(self.first(x))))


DECISIONS = {
    "argmax": lambda y: y.argmax(1),
    "mask": lambda y: y > 0.1,
    "mask as numbers": lambda y: (y > 0.1).float(),
    "indices": lambda y: y.topk(2).indices,
    "buckets": lambda y: torch.bucketize(y, torch.tensor([0.0, 0.2])),
    "mask of masks": lambda y: (y > 0.1).logical_and(y < 0.5).float() * 3,
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_decides_an_output_counts_as_the_output(name: str) -> None:
    """A segmentation net that ends in an argmax had no sensitivity at all."""
    plain, decided = (
        ingot.record(ingot.capture(Decided(end).eval(), (X,)), [(X,)]) for end in (lambda y: y, DECISIONS[name])
    )
    assert not any("sensitivity" in n for n in decided.notes)
    several = 2 if name == "mask of masks" else 1  # it is compared twice
    ratio = decided.sensitivity["tanh"] / plain.sensitivity["tanh"] / several
    assert 0.2 < ratio < 5  # random signs, two probes
