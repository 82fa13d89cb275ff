"""Images of bytes in and out on Arm, which has no uint8 inside a delegate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.support.arm import assert_whole
from tests.support.requirements import need


class Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.conv(x) * 3)


def cast(target: str, **recipe: Any) -> ingot.Casting:
    torch.manual_seed(0)
    batches = [(torch.rand(1, 3, 6, 6),) for _ in range(4)]
    recipe = {"inputs": ["unorm8"], "outputs": ["unorm8"], "recover": False, **recipe}
    return ingot.cast(Filter().eval(), batches[0], target=need(target), calibration=batches, recipe=recipe)


@pytest.mark.parametrize("target", ["vgf", "ethos-u55-128"])
def test_a_table_with_bytes_as_its_result_is_in_the_delegate(target: str) -> None:
    """Its result was read as int8: every number above 127 was negative."""
    casting = cast(target)
    assert_whole(casting)
    assert [o.dtype for o in casting.io.outputs] == ["uint8"]
    assert casting.check.outputs[0].faithful_db > 100


def test_float_ops_read_and_write_bytes() -> None:
    """A conversion of uint8 to float took it for int8."""
    casting = cast("vgf", scopes=[{"op": "*", "precision": "float"}])
    assert_whole(casting)
    assert casting.check.outputs[0].faithful_db > 60
