"""A channel that is further from its graph than the others at the same positions, on synthetic differences."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.verify.channel_scatter import channel_scatter, scatter_chance
from ingot.verify.slices import Differences, View

POSITIONS, CHANNELS = 200, 64


def _differences(graph: Tensor) -> tuple[Differences, View]:
    keys = torch.arange(graph.shape[1]).expand(graph.shape)
    ones = torch.ones_like(graph)
    given = Differences([graph], [ones], [ones], [ones], [ones.bool()], [], [ones])
    return given, View("channel", [keys], graph.shape[1])


def _chances(graph: Tensor) -> list[float]:
    given, view = _differences(graph)
    scatter = channel_scatter(given, view, torch.ones(CHANNELS, dtype=torch.float64))
    assert scatter is not None
    return [scatter_chance(i, scatter, float(len(graph)), 1.0) for i in range(graph.shape[1])]


def _ties(seed: int) -> Tensor:
    """Some positions differ a lot, in all channels alike: what a tie does in a deep net."""
    make = torch.Generator().manual_seed(seed)
    size = 10 * torch.rand(POSITIONS, 1, generator=make, dtype=torch.float64)
    return size * torch.randn(POSITIONS, CHANNELS, generator=make, dtype=torch.float64)


def test_positions_that_differ_in_all_channels_are_no_evidence() -> None:
    for seed in range(20):
        assert min(_chances(_ties(seed))) > 1e-4


def test_a_channel_that_differs_more_than_the_others_is_found() -> None:
    for seed in range(20):
        graph = _ties(seed)
        graph[:, 3] *= 3
        chances = _chances(graph)
        assert chances[3] < 1e-4
        assert min(c for i, c in enumerate(chances) if i != 3) > 1e-2


def test_few_channels_tell_nothing() -> None:
    given, view = _differences(_ties(0)[:, :4])
    assert channel_scatter(given, view, torch.ones(4, dtype=torch.float64)) is None


def test_rare_steps_are_little_evidence() -> None:
    """Values that are one step off here and there have heavy tails: three in a channel are no defect."""
    graph = torch.zeros(POSITIONS, CHANNELS, dtype=torch.float64)
    graph[torch.randperm(POSITIONS, generator=torch.Generator().manual_seed(0))[:9], torch.arange(9) % 3] = 1.0
    assert min(_chances(graph)) > 1e-6
