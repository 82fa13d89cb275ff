"""Products with a constant operand, in every spelling, become linears; in a cast their weights are int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ingot
from ingot.core.fx import calls
from ingot.rewrite import constant_products

aten = torch.ops.aten
Forward = Callable[[Tensor, Tensor], Tensor]


class WithWeight(nn.Module):
    def __init__(self, forward: Forward, *shape: int, seed: int = 0) -> None:
        super().__init__()
        self.run = forward
        self.weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.weight)


def rewritten(net: nn.Module, x: Tensor) -> tuple[Any, list[str]]:
    """The captured graph after the rule alone, and where it applied."""
    program = ingot.capture(net.eval(), (x,))
    places = constant_products.RULE.apply(program.module)
    program.module.graph.lint()
    program.module.recompile()
    return program.module, places


def ops_of(module: Any) -> set[Any]:
    return {n.target for n in calls(module)}


BIAS = torch.randn(24, generator=torch.Generator().manual_seed(1))
SPELLINGS: dict[str, tuple[Forward, tuple[int, ...], tuple[int, ...]]] = {
    "x @ W": (lambda x, w: x @ w, (16, 24), (2, 5, 16)),
    "x @ W.T": (lambda x, w: x @ w.T, (24, 16), (2, 5, 16)),
    "W @ x": (lambda x, w: w @ x, (24, 5), (2, 5, 16)),
    "W @ x, matrices": (lambda x, w: w @ x, (24, 5), (5, 16)),
    "x @ vector": (lambda x, w: x @ w, (16,), (2, 5, 16)),
    "vector @ x": (lambda x, w: w @ x, (5,), (5, 16)),
    "bmm with batch 1": (lambda x, w: torch.bmm(x, w), (1, 16, 24), (1, 5, 16)),
    "bmm with an expanded matrix": (lambda x, w: torch.bmm(x, w.expand(2, 16, 24)), (16, 24), (2, 5, 16)),
    "bmm, expanded on the left": (lambda x, w: torch.bmm(w.expand(2, 24, 5), x), (24, 5), (2, 5, 16)),
    "broadcast batch": (lambda x, w: x @ w, (1, 16, 24), (2, 5, 16)),
    "baddbmm": (lambda x, w: torch.baddbmm(BIAS, x, w), (1, 16, 24), (1, 5, 16)),
    "addmm": (lambda x, w: torch.addmm(BIAS, x, w), (16, 24), (5, 16)),
    "addmm of a matrix": (lambda x, w: torch.addmm(BIAS.expand(5, 24) * 2, x, w), (16, 24), (5, 16)),
    "addmv": (lambda x, w: torch.addmv(BIAS[:5], x, w), (16,), (5, 16)),
    "tensordot": (lambda x, w: torch.tensordot(x, w, dims=([2, 0], [0, 2])), (16, 24, 2), (2, 5, 16)),
    "einsum": (lambda x, w: torch.einsum("bsd,vd->bsv", x, w), (24, 16), (2, 5, 16)),
    "einsum into heads": (lambda x, w: torch.einsum("bsd,dhk->bhsk", x, w), (16, 3, 8), (2, 5, 16)),
    "einsum with dots": (lambda x, w: torch.einsum("...d,dv", x, w), (16, 24), (2, 5, 16)),
    "a linear whose weight is run-time data": (lambda x, w: nn.functional.linear(w, x), (24, 16), (5, 16)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_a_linear(name: str) -> None:
    forward, weight, shape = SPELLINGS[name]
    net, x = WithWeight(forward, *weight), torch.randn(shape)
    module, places = rewritten(net, x)
    assert places
    assert aten.linear.default in ops_of(module)
    assert not ops_of(module) & {aten.bmm.default, aten.matmul.default, aten.mm.default, aten.einsum.default}
    torch.testing.assert_close(
        module(x)[0] if isinstance(module(x), tuple) else module(x), net(x), rtol=1e-4, atol=1e-5
    )


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, dict[str, int], bool]:
    """Labels of x, of the weight and of the output in random orders; at least one is summed."""
    sizes = {n: draw(st.integers(1, 4)) for n in "abcdefg"}
    batch, free, summed, channels = (draw(st.integers(0, n)) for n in (1, 2, 1, 2))
    names = iter("abcdefg")
    b, f, k, c = ([next(names) for _ in range(n)] for n in (batch, free, summed + 1, channels))
    left, right, out = (draw(st.permutations(part)) for part in (b + f + k, b + k + c, b + f + c))
    return f"{''.join(left)},{''.join(right)}->{''.join(out)}", sizes, draw(st.booleans())


@settings(max_examples=40, deadline=None)
@given(equations(), st.integers(0, 1000))
def test_random_equations_keep_their_values(case: tuple[str, dict[str, int], bool], seed: int) -> None:
    equation, sizes, constant_first = case
    parts = equation.split("->")[0].split(",")
    x_part, w_part = parts[::-1] if constant_first else parts
    x = torch.randn([sizes[n] for n in x_part], generator=torch.Generator().manual_seed(seed))

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum(equation, w, x) if constant_first else torch.einsum(equation, x, w)

    net = WithWeight(forward, *[sizes[n] for n in w_part], seed=seed)
    module, places = rewritten(net, x)
    got = module(x)
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, net(x), rtol=1e-4, atol=1e-5)
    assert places
    assert aten.einsum.default not in ops_of(module)


def test_a_product_of_two_computed_values_is_left_alone() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bij,bkj->bik", x, x * 2)

    assert rewritten(Both(), torch.randn(2, 3, 4))[1] == []


@pytest.mark.parametrize("name", ["einsum into heads", "W @ x", "bmm with batch 1", "addmm of a matrix"])
def test_in_a_cast_the_weights_are_int8(name: str) -> None:
    forward, weight, shape = SPELLINGS[name]
    batches = [(torch.randn(shape, generator=torch.Generator().manual_seed(i)),) for i in range(8)]
    casting = ingot.cast(WithWeight(forward, *weight), batches[0], target="xnnpack", calibration=batches)
    weights = [d for d in casting.plan if d.point.operand == 1 and "linear" in d.op]
    assert [d.qparams.dtype for d in weights if d.qparams] == ["int8"]
    assert len(casting.delegates) == 1
    assert not casting.host_ops
