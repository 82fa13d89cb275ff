"""Numbers beside tensors without dimensions: the results keep the dtypes of the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ingot


class Scaled(nn.Module):
    def __init__(self, scaled: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scaled = scaled

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "half times a fraction": lambda x: (x.half().mean() * 0.3).ceil(),
    "half minus a number": lambda x: x.half().sum() - 0.25,
    "bfloat16 in a comparison": lambda x: (x.bfloat16().amax() / 3.0) > 0.1,
    "half divided and rounded": lambda x: torch.div(x.half().mean(), 0.3, rounding_mode="floor"),
    "int32 plus a number": lambda x: x.argmax().to(torch.int32) + 1,
    "float32 times a fraction": lambda x: x.mean() * 0.3,
}


@pytest.mark.parametrize("case", CASES)
def test_a_number_beside_a_scalar_tensor_does_not_widen_the_result(case: str) -> None:
    torch.manual_seed(0)
    net, batches = Scaled(CASES[case]).eval(), [(torch.randn(3, 4),) for _ in range(4)]
    casting = ingot.cast(net, batches[0], target="xnnpack", calibration=batches)
    assert casting.io.outputs[0].dtype == str(net(*batches[0]).dtype).removeprefix("torch.")
    assert casting.check.passed
