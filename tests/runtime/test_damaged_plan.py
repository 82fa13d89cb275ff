"""A program whose plan names values that it does not have is refused in words."""

from __future__ import annotations

from types import SimpleNamespace as Of

import pytest

import ingot
from ingot.runtime.segmented_run import _refuse_missing_values


@pytest.mark.parametrize(("inputs", "outputs"), [([0], [2]), ([-1], [1])])
def test_values_that_do_not_exist_are_refused(inputs: list[int], outputs: list[int]) -> None:
    with pytest.raises(ingot.IngotError, match="damaged"):
        _refuse_missing_values(Of(inputs=inputs, outputs=outputs, values=["x", "y"]))


def test_values_that_exist_are_taken() -> None:
    _refuse_missing_values(Of(inputs=[0], outputs=[1], values=["x", "y"]))
