"""Outputs whose size depends on values, as of a detector that keeps boxes above a score."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot
from ingot.verify.judge_output import Compared
from ingot.verify.sized_by_values import judge_sized_by_values
from tests.support.requirements import need


class AboveScore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.last(self.first(x).relu()).flatten(1)[0]
        return scores[scores > 0.2], torch.nonzero(scores > 0.2)


@pytest.mark.parametrize("target", ["xnnpack", "ethos-u55-128"])
def test_a_model_that_keeps_what_is_above_a_score_is_cast(target: str) -> None:
    """Planning compared outputs of different sizes, which ended in a bare RuntimeError."""
    torch.manual_seed(0)
    batches = [(torch.randn(1, 3, 12, 12),) for _ in range(8)]
    casting = ingot.cast(AboveScore().eval(), batches[0], target=need(target), calibration=batches)
    assert casting.check is not None
    assert any("depends on values" in note for note in casting.check.notes)


FLOAT = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (40, 41, 42)]
GRAPH = [*(t + 0.01 * t.roll(1) for t in FLOAT[:2]), torch.randn(50)]  # the last has another size than the float model


def test_it_is_judged_where_the_float_model_has_as_many() -> None:
    check, notes = judge_sized_by_values("boxes", Compared(FLOAT, GRAPH, [t.clone() for t in GRAPH]), 10.0)
    assert check.problem is None
    assert check.sqnr_db > 30
    assert "judged on the 2 of 3 batches" in notes[0]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ([-GRAPH[0], *GRAPH[1:]], "disagree"),
        ([GRAPH[0][:-1], *GRAPH[1:]], "which its quantized graph has"),
        ([*GRAPH[:2], GRAPH[2][:-1]], "which its quantized graph has"),
    ],
    ids=["negated", "too few", "too few where the float model has another number"],
)
def test_a_wrong_artefact_is_caught(made: list[torch.Tensor], says: str) -> None:
    check, _ = judge_sized_by_values("boxes", Compared(FLOAT, GRAPH, made), 10.0)
    assert check.disagrees
    assert says in str(check.problem)


def test_no_batch_of_the_same_size_is_no_verdict() -> None:
    check, _ = judge_sized_by_values("boxes", Compared(FLOAT[2:], GRAPH[2:], GRAPH[2:]), 10.0)
    assert "in none of 1 batches" in str(check.problem)
    assert not check.disagrees
