"""Channels-last values beside host ops and inside XNNPACK's delegates: right numbers on the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot

X = Callable[[Tensor], Any]
# Delegated, on the host, and both; elementwise, along an axis, with results of another rank.
FUNCTIONS: dict[str, X] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax over channels": lambda x: x.softmax(1),
    "linear": lambda x: nn.functional.linear(x, torch.linspace(-1, 1, 24).reshape(4, 6)),
    "scalar": lambda x: torch.erf(x) * torch.tensor(2.0),
    "broadcast": lambda x: torch.erf(x) + torch.erf(torch.linspace(-1, 1, 6)),
    "stack": lambda x: torch.stack([x, torch.erf(x)], 1),
    "cat": lambda x: torch.cat([torch.erf(x), x.flip(3)], 2),
    "pool": lambda x: nn.functional.max_pool2d(x, 2),
    "conv": lambda x: nn.functional.conv2d(x, torch.linspace(-1, 1, 9).reshape(3, 3, 1, 1)),
    "reduced": lambda x: (x.prod(2), x.amax(2), x.sum(1), x.sum(2), x.amin(3)),
    "reduced and read": lambda x: torch.erf(x.prod(2)) * 2 + x.prod(2),
    "indices": lambda x: x.max(2),
    "shape": lambda x: x.reshape(2, -1).cumsum(1),
    "returned": lambda x: (x, x.neg(), torch.erf(x)),
}


class Applied(nn.Module):
    def __init__(self, function: X):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("recipe", [{}, {"integer_io": False}, {"quantize": False}], ids=["int", "float io", "float"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_channels_last_inputs_give_the_same_numbers(name: str, recipe: dict[str, Any]) -> None:
    batches = [(torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(i)),) for i in range(3)]
    asked: Any = {**recipe, "channels_last": ["*"], "recover": False}  # recovery would run the op elsewhere
    casting = ingot.cast(Applied(FUNCTIONS[name]), batches[0], target="xnnpack", calibration=batches, recipe=asked)
    assert casting.check is not None
    assert casting.io.inputs[0].layout == "channels_last"
    assert min(o.sqnr_db for o in casting.check.outputs if o.sqnr_db is not None) > (
        100 if "quantize" in recipe else 20
    )


@pytest.mark.parametrize("name", ["scalar", "cat", "conv", "indices", "returned"])  # seconds each
def test_a_backend_without_memory_formats_gets_contiguous_memory(name: str) -> None:
    """Vulkan's runtime copies bytes."""
    x = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0)).contiguous(
        memory_format=torch.channels_last
    )
    asked: Any = {"quantize": False, "recover": False}
    casting = ingot.cast(Applied(FUNCTIONS[name]), (x,), target="vulkan", calibration=[(x,)], recipe=asked)
    assert casting.check is not None
    assert casting.io.inputs[0].layout == "channels_last"
    assert min(o.sqnr_db for o in casting.check.outputs if o.sqnr_db is not None) > 100


def _by_its_mean(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def _pooled_and_convolved(x: Tensor) -> Tensor:
    c = x.shape[1]
    return nn.functional.conv2d(nn.functional.avg_pool2d(x, x.shape[2:]), torch.linspace(-1, 1, c * c).view(c, c, 1, 1))


@pytest.mark.parametrize("function", [_by_its_mean, _pooled_and_convolved, lambda x: x.relu()])
@pytest.mark.parametrize("shape", [(2, 8, 1, 1), (2, 1, 3, 4), (2, 4, 3, 1)])
@pytest.mark.parametrize("recipe", [{}, {"quantize": False}], ids=["int", "float"])
def test_sizes_of_one_fit_both_formats(shape: tuple[int, ...], function: X, recipe: Any) -> None:
    """The runtime goes by the dim order, so XNNPACK's passes must."""
    batches = [(torch.randn(shape).contiguous(memory_format=torch.channels_last),) for _ in range(2)]
    asked: Any = {**recipe, "recover": False}
    casting = ingot.cast(Applied(function), batches[0], target="xnnpack", calibration=batches, recipe=asked)
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 20
