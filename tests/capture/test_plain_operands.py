"""Integers beside floats are converted by an op of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.support.requirements import need

CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda n, x: torch.cat([n, x], -1),
    "stack": lambda n, x: torch.stack([x, n, n]),
    "sum": lambda n, x: n + x,
    "product": lambda n, x: x * n,
    "quotient": lambda n, x: n / (x.abs() + 1),
}


class Mixed(nn.Module):
    def __init__(self, case: str) -> None:
        super().__init__()
        self.op, self.linear = CASES[case], nn.Linear(4, 4)

    def forward(self, n: Tensor, x: Tensor) -> Tensor:
        return self.op(n, torch.tanh(self.linear(x))).mean(-1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["xnnpack", "ethos-u55-128"])
def test_integers_beside_floats_do_not_split_the_delegate(case: str, target: str) -> None:
    """On Ethos-U each was two delegates, and a join was computed of the wrong type."""
    torch.manual_seed(0)
    batches = [(torch.randint(-3, 4, (2, 8, 4)), torch.randn(2, 8, 4)) for _ in range(4)]
    casting = ingot.cast(
        Mixed(case).eval(), batches[0], target=need(target), calibration=batches, recipe={"recover": False}
    )
    assert casting.check.passed
    assert len(casting.delegates) == 1
    assert {h.op.partition(".")[0] for h in casting.host_ops} <= {"dim_order_ops", "quantized_decomposed", "_to_copy"}
