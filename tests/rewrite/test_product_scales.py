"""A constant factor of a product goes into its weights, or to its smaller operand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ingot
from ingot.core.fx import calls, value_of
from ingot.rewrite import product_scales

aten = torch.ops.aten


class Scaled(nn.Module):
    def __init__(self, width: int, channels: int, bias: bool, factor: Any, divides: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, channels, bias=bias)
        self.factor = nn.Parameter(factor) if isinstance(factor, Tensor) else factor
        self.divides = divides

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) / self.factor if self.divides else self.factor * self.linear(x)


def rewritten(net: nn.Module, *inputs: Tensor) -> tuple[Any, list[str]]:
    program = ingot.capture(net.eval(), inputs)
    places = product_scales.RULE.apply(program.module)
    program.module.graph.eliminate_dead_code()
    program.module.recompile()
    return program.module, places


def only(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 5), st.booleans(), st.sampled_from(["number", "one", "channels"]), st.booleans()
)
def test_random_scaled_linears_are_one_linear(w: int, n: int, bias: bool, kind: str, divides: bool) -> None:
    torch.manual_seed(8 * w + n)
    factor = {"number": 0.37, "one": torch.rand(1) + 0.5, "channels": torch.rand(n) + 0.5}[kind]
    net, x = Scaled(w, n, bias, factor, divides), torch.randn(2, 3, w)
    module, places = rewritten(net, x)
    assert places
    assert [node.target for node in calls(module)] == [aten.linear.default]
    torch.testing.assert_close(only(module(x)), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "right", "scaled"), [((2, 9, 3), (2, 3, 8), 0), ((2, 9, 3), (2, 3, 4), 1), ((2, 2, 9), (2, 9, 2), None)]
)
def test_of_two_computed_values_the_smaller_is_scaled(left: Any, right: Any, scaled: int | None) -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.bmm(a, b) * 0.125

    a, b = torch.randn(left), torch.randn(right)
    module, places = rewritten(Product(), a, b)
    assert bool(places) == (scaled is not None)
    torch.testing.assert_close(only(module(a, b)), Product()(a, b), rtol=1e-5, atol=1e-6)
    if scaled is not None:
        factor = next(n for n in calls(module) if n.target is aten.mul.Tensor)
        assert list(value_of(factor).shape) == list((left, right)[scaled])


def test_a_product_that_others_read_keeps_its_value() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return F.relu(y) + y * 3.0

    assert rewritten(Both(), torch.randn(2, 4))[1] == []
