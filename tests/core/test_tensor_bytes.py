"""Bytes of tensors of any strides, and what is named by them."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.core.tensor_bytes import raw_bytes

TENSORS = {
    "one-expanded": torch.tensor(0.5).expand(1),
    "one-of-many": torch.arange(6.0)[::4][1:],
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "transposed": torch.arange(6, dtype=torch.int16).reshape(2, 3).T,
    "stepped": torch.arange(9.0, dtype=torch.float64)[::2],
    "no-dimensions": torch.tensor(True),
    "empty": torch.empty(2, 0, 3),
    "complex": torch.tensor([1 + 2j]).expand(2),
    "conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", TENSORS)
def test_the_bytes_are_those_of_the_elements_in_order(name: str) -> None:
    assert raw_bytes(TENSORS[name]).numpy().tobytes() == TENSORS[name].resolve_conj().numpy().tobytes()


class OneNumberAssigned(torch.nn.Module):
    """The assigned number becomes a constant of one element and stride 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[..., :1] = 0.5
        return y


def test_a_constant_of_one_element_has_a_fingerprint() -> None:
    assert ingot.capture(OneNumberAssigned(), (torch.randn(2),)).fingerprint
