"""Joined groups and channels are derived from what ops do, not from their names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.capture.element_origin import Origin, origins


class Net(nn.Module):
    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.run = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 5, 1), forward
        self.scale = nn.Parameter(torch.rand(2, 1, 1) + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def origin_of(forward: Callable[[Net, Tensor], Tensor]) -> Origin:
    x = torch.randn(2, 3, 4, 6)
    return origins(ingot.capture(Net(forward).eval(), (x,)).module, (x,))[0]


def group_sizes(origin: Origin) -> list[int]:
    assert origin.groups is not None
    return origin.groups.flatten().bincount().tolist()


def test_one_op_is_one_group() -> None:
    for forward in (lambda s, x: s.a(x), lambda s, x: s.a(x).relu() * 3, lambda s, x: s.a(x).flatten(1).sigmoid()):
        assert origin_of(forward).groups is None


def test_a_cat_is_a_join_wherever_its_numbers_are_moved() -> None:
    moved = origin_of(lambda s, x: torch.cat([s.a(x) * 640, s.b(x).sigmoid()], 1).flatten(2).transpose(1, 2))
    assert moved.groups is not None
    assert moved.groups[0, 0].tolist() == [moved.groups[0, 0, 0]] * 4 + [moved.groups[0, 0, 8]] * 5
    assert group_sizes(moved) == [2 * 24 * 4, 2 * 24 * 5]
    stacked = origin_of(lambda s, x: torch.stack([s.a(x), s.b(x)[:, :4]], -1).moveaxis(-1, 1).exp())
    assert group_sizes(stacked) == [192, 192]
    rolled = origin_of(lambda s, x: torch.cat([s.a(x), s.b(x)], 1).roll(2, 1))
    assert rolled.groups is not None
    assert len(set(rolled.groups[0, :, 0, 0].tolist())) == 2
    assert rolled.groups[0, 0, 0, 0] == rolled.groups[0, 8, 0, 0] != rolled.groups[0, 2, 0, 0]


def test_parts_of_one_op_that_were_scaled_apart_are_groups() -> None:
    def forward(s: Net, x: Tensor) -> Tensor:
        y = s.b(x)
        return torch.cat([y[:, :2].exp() * s.scale, y[:, 2:].sigmoid()], 1)

    assert group_sizes(origin_of(forward)) == [96, 144]


def test_a_sum_of_joined_values_is_one_group() -> None:
    assert origin_of(lambda s, x: torch.cat([s.a(x), s.a(-x)], 1) + torch.cat([s.a(x), x, x[:, :1]], 1)).groups is None


def test_a_pad_is_a_group() -> None:
    assert group_sizes(origin_of(lambda s, x: nn.functional.pad(s.a(x), (1, 0)))) == [32, 192]


def test_channels_follow_their_numbers() -> None:
    plain = origin_of(lambda s, x: s.a(x).relu())
    assert plain.channels is not None
    assert plain.channels[0, :, 0, 0].tolist() == [0, 1, 2, 3]
    flat = origin_of(lambda s, x: (s.a(x) * 2).flatten(1))
    assert flat.channels is not None
    assert flat.channels[1].tolist() == [c for c in range(4) for _ in range(24)]
    last = origin_of(lambda s, x: s.b(x).softmax(1).permute(0, 2, 3, 1))
    assert last.channels is not None
    assert last.channels[0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert origin_of(lambda s, x: x.cumsum(1)).channels is None


def test_dynamic_shapes() -> None:
    wide = ({3: torch.export.Dim("w", min=2, max=50)},)
    forward = lambda s, x: torch.cat([s.a(x), s.b(x)], 1)
    program = ingot.capture(Net(forward).eval(), (torch.randn(2, 3, 4, 6),), dynamic_shapes=wide)
    found = origins(program.module, (torch.randn(2, 3, 4, 9),))[0]
    assert found.groups is not None
    assert found.groups.shape == (2, 9, 4, 9)


@pytest.mark.parametrize("mask", [False, True])
def test_values_that_decide_what_is_moved_end_the_walk(mask: bool) -> None:
    origin = origin_of(lambda s, x: torch.where((x[:, :1] > 0) if mask else (s.scale[:1] > 0), s.a(x), s.a(-x)))
    assert origin.groups is None
