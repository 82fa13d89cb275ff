"""Canonical data movement: what has no canonical form is asked once, and equal ops with a form all get it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from ingot.capture.canonicalize import data_movement
from ingot.capture.export import capture_program
from ingot.core.fx import calls

aten = torch.ops.aten


class Windows(nn.Module):
    """Overlapping windows are no slice and no cat of slices; a select is a slice."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.relu().unfold(1, 5, 3), x.sigmoid().unfold(1, 5, 3), x.relu().select(1, 2), x.sigmoid().select(1, 2)


def test_movement_without_a_canonical_form_is_numbered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbered = Counter[object]()
    original = data_movement._positions

    def counted(node: torch.fx.Node, x: torch.fx.Node) -> torch.Tensor:
        numbered[node.target] += 1
        return original(node, x)

    monkeypatch.setattr(data_movement, "_positions", counted)
    data_movement._has_form.drop_oldest()
    module = capture_program(Windows(), (torch.randn(3, 17),)).module
    data_movement.canonicalize_movement(module)
    assert numbered[aten.unfold.default] == 1
    kinds = Counter(n.target for n in calls(module))
    assert kinds[aten.unfold.default] == 2
    assert aten.select.int not in kinds
    assert kinds[aten.slice.Tensor] == 2


def test_what_was_asked_for_one_item_does_not_answer_for_another() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.roll(1, 0), x.roll((1, 1), (0, 1)), *x.split([1, 3], 0), x.flip(0)

    given = torch.randn(4, 6)
    for net in (Mixed(), Mixed()):
        module = capture_program(net, (given,)).module
        for made, expected in zip(module(given), net(given), strict=True):
            torch.testing.assert_close(made, expected)
