"""cond, map, scan and while_loop: inlined, recorded by branch, executed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import ingot


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.big = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 5, padding=2)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.mean() > 0, lambda a: self.small(a).relu(), lambda a: self.big(a).tanh(), (x,))
        z: torch.Tensor = self.head(y)
        return z


def _images(*means: float) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(1, 3, 8, 8) * 0.3 + mean,) for mean in means]


def test_both_branches_of_a_cond_are_executed_and_verified() -> None:
    torch.manual_seed(0)
    net, batches = Branches().eval(), _images(1.0, -1.0, 0.5, -0.5)
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches)
    assert any("cond at test_control_flow.py" in note for note in casting.notes)
    for mean in (1.0, -1.0):
        check = ingot.verify(casting, _images(mean, mean))
        assert check.passed
        assert check.outputs[0].sqnr_db > 25


def test_a_branch_is_recorded_on_the_batches_that_take_it() -> None:
    torch.manual_seed(0)
    program = ingot.capture(Branches().eval(), _images(1.0)[0])
    only_true = ingot.record(program, _images(1.0, 2.0))
    convs = [n.name for n in program.module.graph.nodes if n.target is torch.ops.aten.conv2d.default]
    assert [name in only_true.values for name in convs] == [True, False, True]
    both = ingot.record(program, _images(1.0, 2.0, -1.0))
    assert [both.values[name].count for name in convs[:2]] == [2 * 256, 256]


def test_a_branch_that_no_batch_took_is_still_right() -> None:
    torch.manual_seed(0)
    casting = ingot.cast(Branches().eval(), _images(1.0)[0], target="xnnpack", calibration=_images(1.0, 0.5))
    assert ingot.verify(casting, _images(-0.5)).outputs[0].sqnr_db > 20
    assert any("no calibration batch took the branch" in note for note in casting.notes)
    assert len(casting.delegates) == 1


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, xs: torch.Tensor, h: torch.Tensor) -> Any:
        def step(state: torch.Tensor, x: torch.Tensor) -> Any:
            new = torch.tanh(self.x(x) + self.h(state))
            return new, new.clone()

        return scan(step, h, xs)


def test_a_scan_of_64_steps_is_one_delegate() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(64, 2, 4), torch.randn(2, 8)) for _ in range(3)]
    casting = ingot.cast(Cell().eval(), batches[0], target="xnnpack", calibration=batches)
    assert any("unrolled, 64 steps" in note for note in casting.notes)
    assert (len(casting.delegates), len(casting.host_ops)) == (1, 0), [h.op for h in casting.host_ops]
    assert casting.check is not None
    assert casting.check.passed


def _equal_to_reference(net: nn.Module, *x: torch.Tensor) -> ingot.Program:
    program = ingot.capture(net.eval(), x)
    module: Any = program.module
    for ours, theirs in zip(module(*x), program.reference(*x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not any("higher_order" in str(n.target) for n in module.graph.nodes)
    return program


class Mapped(nn.Module):
    def forward(self, xs: torch.Tensor, y: torch.Tensor) -> Any:
        mapped: Any = torch_map
        return mapped(lambda x, w: (x * w).sin(), xs, y)


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 0.5 + 1), (start, x))[1]


class UntilSmall(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return while_loop(lambda v: v.abs().sum() > 1, lambda v: (v * 0.5,), (x,))[0]


def test_map_is_unrolled() -> None:
    _equal_to_reference(Mapped(), torch.randn(5, 3), torch.randn(3))


def test_a_loop_of_constant_length_is_unrolled() -> None:
    program = _equal_to_reference(Counted(), torch.randn(3))
    assert any("unrolled, 5 steps" in note for note in program.notes)


def test_a_loop_whose_length_depends_on_data_is_refused() -> None:
    with pytest.raises(ingot.CaptureError, match=r"depends on the inputs") as e:
        ingot.capture(UntilSmall(), (torch.randn(3),))
    assert "test_control_flow.py" in str(e.value)
