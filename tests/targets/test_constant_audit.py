"""The audit of XNNPACK delegates finds kernels that read only constants, in the payload that the runtime loads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.targets.xnnpack.constant_audit import constant_kernels
from ingot.targets.xnnpack.payload import PayloadGraph, PayloadNode

ALL_CONSTANT = "reads only constants"


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.heads = nn.Parameter(torch.randn(16, 4, 8) * 0.2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("bsd,vd->bsv", x, self.table.weight), torch.einsum("bsd,dhk->bhsk", x, self.heads)


BATCHES = [(torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(i)),) for i in range(8)]


def cast(recipe: dict[str, object]) -> ingot.Casting:
    return ingot.cast(TiedHead().eval(), BATCHES[0], target="xnnpack", calibration=BATCHES, recipe=recipe)


def test_a_cast_computes_nothing_from_constants() -> None:
    assert not [n for n in cast({}).notes if ALL_CONSTANT in n]


def test_without_the_rewrites_the_audit_names_the_kernels_and_the_users_line() -> None:
    recipe: dict[str, object] = {
        "disabled_rewrites": ["constant-product-as-linear", "fold-constants", "fold-constants-of-products"]
    }
    notes = [n for n in cast(recipe).notes if ALL_CONSTANT in n]
    assert any("XNNStaticTranspose" in n for n in notes)
    assert all("test_constant_audit.py:" in n for n in notes)


@pytest.mark.parametrize(("reads", "found"), [((7,), 2), ((7, 9), 0), ((), 0)])
def test_what_reads_a_constant_result_is_found_too(reads: tuple[int, ...], found: int) -> None:
    first, second = PayloadNode("XNNStaticTranspose", reads, (1,), 0), PayloadNode("XNNConvert", (1,), (2,), 0)
    kernels = list(constant_kernels(PayloadGraph((first, second), {7: 12})))
    assert [k.elements for k in kernels] == [12] * found
