"""What plans are compared by: each output, each joined group, and the numbers that decide integers."""

from __future__ import annotations

import torch
from torch import nn

import ingot
from ingot.plan.compared_parts import ComparedParts, worst_noise
from ingot.plan.estimator_search import simulation_of
from tests.support.requirements import need

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Joined(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sin(x)
        return torch.cat([y * 640, torch.cos(x)], 1), y.argmax(1)


def test_joined_groups_and_deciding_numbers_are_parts_of_their_own() -> None:
    program = ingot.capture(Joined(), (X,))
    simulation = simulation_of(program.module, [(X,)])
    boxes, scores, places, deciding = simulation.float_results[0]
    torch.testing.assert_close(boxes.reshape(4, 8), torch.sin(X) * 640)
    torch.testing.assert_close(scores.reshape(4, 8), torch.cos(X))
    assert torch.equal(places, torch.sin(X).argmax(1))
    torch.testing.assert_close(deciding, torch.sin(X))


def test_small_scores_beside_large_boxes_count() -> None:
    boxes, scores = torch.full((100,), 640.0), torch.ones(100)
    assert worst_noise([[boxes, scores]], [[boxes, -scores]]) == 4.0
    whole = torch.cat([boxes, scores])
    assert worst_noise([[whole]], [[torch.cat([boxes, -scores])]]) < 1e-4


def test_one_of_six_integers_may_be_chance() -> None:
    places = torch.arange(6)
    assert worst_noise([[places]], [[places.clamp(max=4)]]) == 0.0
    assert worst_noise([[places]], [[places + 1]]) > 0.04


def test_an_output_of_another_size_stays_whole() -> None:
    parts = ComparedParts({0: torch.zeros(4, dtype=torch.int64)}, ())
    assert [p.shape for p in parts.split([torch.ones(6)])] == [(6,)]


class Bucketed(nn.Module):
    """Rows that differ by a factor of 3000, whose norm a net on Ethos-U cannot compute in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.register_buffer("bounds", torch.linspace(-2, 2, 9))

    bounds: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(self.norm(x), self.bounds)


def test_a_net_that_ends_in_integers_gets_the_precision_it_needs() -> None:
    """It was planned in int8 throughout, and refused at 1 dB: no noise was seen in its integers."""
    rows = torch.logspace(-2, 1.5, 8)[None, :, None]
    batches = [(torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(i)) * rows,) for i in range(4)]
    casting = ingot.cast(Bucketed().eval(), batches[0], target=need("ethos-u85-256"), calibration=batches)
    assert casting.check.passed
    assert casting.plan.predicted.sqnr_db is not None
    assert casting.plan.predicted.sqnr_db < 40
