"""Sorts whose equal elements keep their order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ingot
from ingot.rewrite.decomposition import Declined
from ingot.rewrite.stable_sort import MOST_RANKED, sort_by_ranks


@given(st.integers(0, 1 << 30), st.booleans(), st.integers(-2, 1), st.sampled_from(["float", "nan", "int"]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_it_is_the_stable_sort_of_torch(seed: int, descending: bool, dim: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (4, 9), generator=generator)
    x = x if kind == "int" else x.float()
    if kind == "nan":
        x[torch.rand(x.shape, generator=generator) < 0.2] = float("nan")
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    made = sort_by_ranks(x, dim, descending)
    torch.testing.assert_close(made[0], values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(made[1], indices)


def test_a_long_sort_is_left_to_others() -> None:
    with pytest.raises(Declined):
        sort_by_ranks(torch.zeros(MOST_RANKED + 1))


class Ranked(nn.Module):
    """The classes of a picture by score; many scores are zero."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.argsort(torch.relu(x).round(), dim=-1, descending=True, stable=True)
        return order, torch.sort(torch.relu(x).round(), dim=-1).indices


@pytest.mark.parametrize("target", ["xnnpack"])
def test_a_sort_with_ties_runs(target: str) -> None:
    batches = [(torch.randn(2, 10, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    casting = ingot.cast(Ranked().eval(), batches[0], target=target, calibration=batches, recipe={"quantize": False})
    assert casting.check.passed
    assert {o.sqnr_db for o in casting.check.outputs} == {200.0}
