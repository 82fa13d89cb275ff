"""What a model may return: integers, constants, inputs, one tensor twice, None, numbers, empty tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot

BATCHES = [(torch.randn(2, 8, generator=torch.Generator().manual_seed(i)),) for i in range(4)]


class Net(nn.Module):
    def __init__(self, run: Any):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.run = nn.Linear(8, 4), run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, self.linear(x), x)


# How it is returned, and the dtypes of the tensors among that.
RETURNED: dict[str, tuple[Any, list[str]]] = {
    "integers": (lambda s, y, x: (y.argmax(1), y.argmax(1).int(), y > 0), ["int64", "int32", "bool"]),
    "constants": (
        lambda s, y, x: (y, torch.ones(3), torch.arange(3), torch.arange(3, dtype=torch.int32)),
        ["float32", "float32", "int64", "int32"],
    ),
    "only a constant": (lambda s, y, x: torch.ones(3), ["float32"]),
    "a tensor twice": (lambda s, y, x: (y, y, {"again": y}), ["float32"] * 3),
    "an input": (lambda s, y, x: (x, y, x), ["float32"] * 3),
    "only an input": (lambda s, y, x: x, ["float32"]),
    "None and numbers": (lambda s, y, x: (None, y, 3, 2.5, True, x.shape[0]), ["float32"]),
    "weights": (lambda s, y, x: (y, s.linear.bias, s.linear.weight.t()), ["float32"] * 3),
    "nothing in it": (lambda s, y, x: (y, x[:0], y.argmax(1)[:0]), ["float32", "float32", "int64"]),
}


@pytest.mark.parametrize("name", RETURNED)
def test_returned(name: str) -> None:
    run, dtypes = RETURNED[name]
    casting = ingot.cast(Net(run).eval(), BATCHES[0], target="xnnpack", calibration=BATCHES)
    assert casting.check is not None
    assert casting.check.passed
    assert len(casting.check.outputs) == len(dtypes)
    assert [o.dtype for o in casting.io.outputs] == dtypes
    assert min(o.sqnr_db for o in casting.check.outputs) > 30


def test_text_is_refused_with_a_reason() -> None:
    with pytest.raises(ingot.IngotError, match="text"):
        ingot.cast(Net(lambda s, y, x: (y, "text")).eval(), BATCHES[0], target="xnnpack", calibration=BATCHES)
