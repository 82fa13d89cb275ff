"""Comparisons, masks and argmax of computed values on Arm's targets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.support.requirements import need

MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "two values": lambda a, b: torch.where(a > b, a, b * 0.5),
    "a number": lambda a, b: torch.where(a > 0.1, a, b * 0.5),
    "a mask is the output": lambda a, b: a > 0.1,
    "a mask as numbers": lambda a, b: a * (b > 0.2).float(),
    "logic of masks": lambda a, b: a.masked_fill((b > 0.2) & (a < 0.5), 0.0),
    "equal to zero": lambda a, b: torch.where(torch.relu(a) == 0, b, a),
    "not, or": lambda a, b: torch.where(~(a >= 0.3) | (b < 0), a, a * 2),
}


class Deciding(nn.Module):
    def __init__(self, decide: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.decide = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1), decide

    def forward(self, x: Tensor) -> Tensor:
        return self.decide(self.a(x), self.b(x))


def cast(decide: Callable[[Tensor, Tensor], Tensor], target: str) -> ingot.Casting:
    batches = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(6)]
    recipe = {"recover": False} | ({"options": {"run_on": "reference-model"}} if target == "vgf" else {})
    return ingot.cast(Deciding(decide).eval(), batches[0], target=need(target), calibration=batches, recipe=recipe)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("target", ["vgf", "ethos-u85-256"])
def test_masks_of_computed_values_are_in_the_delegate(mask: str, target: str) -> None:
    """The comparison was on the host, and split the delegate."""
    casting = cast(MASKS[mask], target)
    assert casting.check.passed
    assert (len(casting.delegates), casting.host_ops) == (1, ())


def test_the_plan_says_what_a_comparison_reads() -> None:
    casting = cast(MASKS["two values"], "ethos-u85-256")
    said = casting.plan.why("gt")
    assert "int8" in said
    assert "the result has no scale" in said


@pytest.mark.parametrize("keepdim", [False, True])
def test_an_argmax_is_in_the_delegate_on_vgf(keepdim: bool) -> None:
    """What is left outside is the cast to the 64 bits that the model returns."""
    casting = cast(lambda a, b: a.argmax(1, keepdim), "vgf")
    assert casting.check.passed
    assert casting.io.outputs[0].dtype == "int64"
    assert [h.op for h in casting.host_ops] == ["dim_order_ops._to_dim_order_copy.default"]


CASTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the output": lambda a, b: (a * 4).to(torch.int32),
    "bits": lambda a, b: ((a * 4).to(torch.int32) & 3) * b,
}


@pytest.mark.parametrize("case", CASTS)
def test_a_cast_to_integers_is_no_comparison(case: str) -> None:
    """Its integers are numbers, and not those that are stored: planned in int8 it was wrong."""
    casting = cast(CASTS[case], "vgf")
    assert casting.check.passed
    assert not any("cast" in n or "_to_copy" in n for n in casting.notes if "wrong" in n)


def test_a_comparison_of_an_input_reads_it_in_float() -> None:
    """In 8 bits a pixel near the bound would be on the other side of it."""
    batches = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(6)]

    class Bounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x > 0.1

    casting = ingot.cast(Bounded(), batches[0], target=need("vgf"), calibration=batches)
    assert casting.check.outputs[0].sqnr_db >= 100
