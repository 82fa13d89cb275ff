"""Gathers with a constant index whose rows differ become products with one-hot matrices."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ingot
from ingot.core.fx import calls
from ingot.rewrite.constant_gather import ConstantGather

aten = torch.ops.aten


class Gather(nn.Module):
    index: Tensor

    def __init__(self, dim: int, index: Tensor) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("index", index)

    def forward(self, x: Tensor) -> Tensor:
        return torch.gather(x * 2, self.dim, self.index)


@st.composite
def gathers(draw: st.DrawFn) -> tuple[Tensor, int, Tensor]:
    """Along some dimensions the index repeats itself."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(sizes) - 1))
    made = [draw(st.integers(1, 6)) if d == dim else n for d, n in enumerate(sizes)]
    own = [n if d == dim or draw(st.booleans()) else 1 for d, n in enumerate(made)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    index = torch.randint(0, sizes[dim], own, generator=generator).expand(made)
    return torch.randn(sizes, generator=generator), dim - draw(st.sampled_from((0, len(sizes)))), index


@settings(max_examples=40, deadline=None)
@given(gathers())
def test_it_keeps_the_values(case: tuple[Tensor, int, Tensor]) -> None:
    x, dim, index = case
    program = ingot.capture(Gather(dim, index).eval(), (x,))
    rule = ConstantGather(lambda node: node.target is aten.gather.default)
    before = {n.target for n in calls(program.module)}
    assert rule.apply(program.module) or aten.gather.default not in before
    program.module.recompile()
    got = program.module(x)
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, torch.gather(x * 2, dim, index))
    assert aten.gather.default not in {n.target for n in calls(program.module)}


def test_relative_positions_stay_in_the_delegate() -> None:
    """Attention that adds a term for each distance, as in DeBERTa."""

    class Relative(nn.Module):
        distance: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.qk, self.table = nn.Linear(16, 32), nn.Parameter(torch.randn(40, 16))
            at = torch.arange(12)
            self.register_buffer("distance", (at[:, None] - at[None, :] + 20).expand(2, 12, 12))

        def forward(self, x: Tensor) -> Tensor:
            q, k = self.qk(x).chunk(2, -1)
            far = torch.gather(q @ self.table.T, -1, self.distance)
            return (q @ k.mT + far).softmax(-1) @ x

    torch.manual_seed(0)
    batches = [(torch.randn(2, 12, 16),) for _ in range(4)]
    casting = ingot.cast(Relative().eval(), batches[0], target="xnnpack", calibration=batches)
    assert len(casting.delegates) == 1
    assert not casting.host_ops
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 20
