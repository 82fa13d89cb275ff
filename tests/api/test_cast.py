"""The whole road to XNNPACK on small real architectures: lowered, loaded, run, compared."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn as nn

import ingot
from tests.support.models import CASES, WHOLE, case


@cache
def casting_of(name: str) -> ingot.Casting:
    model, batches = case(name)
    return ingot.cast(model, batches[0], target="xnnpack", calibration=batches)


@pytest.mark.parametrize("name", [n for n in CASES if n not in WHOLE])
def test_artefact_agrees_with_its_quantized_graph(name: str) -> None:
    check = casting_of(name).check
    assert check.passed
    assert "child process" in check.executed_on
    assert min(o.faithful_db for o in check.outputs) >= 40
    assert min(o.sqnr_db for o in check.outputs) >= 30


@pytest.mark.parametrize("name", WHOLE)
def test_whole(name: str) -> None:
    casting = casting_of(name)
    assert (len(casting.delegates), casting.host_ops) == (1, ())
    assert casting.check.passed


class _Angle(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan(x * 2)


def test_host_ops_have_reason_hint_and_the_users_line() -> None:
    batches = [(torch.linspace(-1, 1, 12).reshape(3, 4),)]
    as_written = {"disabled_rewrites": ["trigonometry-as-polynomials"]}
    ops = ingot.cast(_Angle(), batches[0], target="xnnpack", calibration=batches, recipe=as_written).host_ops
    assert [o.op for o in ops] == ["atan.default"]
    assert ops[0].source.startswith("test_cast.py:")
    assert "atan" in ops[0].reason
    assert ops[0].hint


def test_two_runs_of_a_cache_start_alike() -> None:
    casting = casting_of("cache that starts non-zero")
    _, batches = case("cache that starts non-zero")
    first, second = (ingot.verify(casting, batches) for _ in range(2))
    assert first == second


def test_the_users_model_is_left_as_it_was() -> None:
    model, batches = case("cache that starts non-zero")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    program = ingot.capture(model, batches[0])
    ingot.record(program, batches)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert any("training mode" in n for n in program.notes)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)).relu())


def test_a_dynamic_batch_runs_at_sizes_never_recorded() -> None:
    batches = [(torch.randn(n, 8),) for n in (4, 2, 7)]
    dynamic = ({0: torch.export.Dim("n", min=1, max=16)},)
    casting = ingot.cast(Tokens().eval(), batches[0], target="xnnpack", calibration=batches, dynamic_shapes=dynamic)
    assert len(casting.delegates) == 1
    assert isinstance(casting.io.inputs[0].shape[0], str)
    check = ingot.verify(casting, [(torch.randn(16, 8),), (torch.randn(1, 8),)])
    assert check.passed
    assert check.outputs[0].faithful_db > 100


class Joined(nn.Module):
    """Three branches of very different range, joined in a given order."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.order = order
        self.branches = nn.ModuleList([nn.Conv2d(3, 4, 1) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [branch(x) * 5.0**i for i, branch in enumerate(self.branches)]
        return torch.cat([torch.moveaxis(parts[i], 1, -1) for i in self.order], 0)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_permuting_a_cat_permutes_the_plan(order: tuple[int, ...]) -> None:
    batches = [(torch.randn(1, 3, 4, 4),) for _ in range(3)]

    def plan(order: tuple[int, ...]) -> ingot.Plan:
        program = ingot.capture(Joined(order).eval(), batches[0])
        return ingot.plan(program, ingot.record(program, batches), "xnnpack")

    straight, permuted = plan((0, 1, 2)), plan(order)
    same = [d for d in straight if not d.point.node.startswith("cat") or d.point.operand is None]
    names = {f"permute{_suffix(order.index(i))}": f"permute{_suffix(i)}" for i in range(3)}
    renamed = {names.get(d.point.node, d.point.node): d for d in permuted if d.point.operand is None}
    assert all(renamed[d.point.node].qparams == d.qparams for d in same if d.point.operand is None)
    assert straight.qparams("cat") == permuted.qparams("cat")
    for position, i in enumerate(order):
        assert permuted.qparams("cat", position) == straight.qparams("cat", i)


def _suffix(i: int) -> str:
    return f"_{i}" if i else ""
