"""Embedding tables of a static int8 cast are int8 in the file, one scale for each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import ingot


class TiedTable(nn.Module):
    """Embedding and output projection share one table, as in a decoder."""

    def __init__(self, rows: int = 2000, width: int = 48) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width, padding_idx=0)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mix(self.table(tokens)).relu() @ self.table.weight.T


torch.manual_seed(0)
NET = TiedTable().eval()
BATCHES = [(torch.randint(0, 2000, (1, 7), generator=torch.Generator().manual_seed(i)),) for i in range(8)]


def cast(recipe: Any = None) -> ingot.Casting:
    return ingot.cast(NET, BATCHES[0], target="xnnpack", calibration=BATCHES, recipe=recipe)


def test_table_and_projection_take_one_byte_a_number() -> None:
    casting = cast()
    numbers = NET.table.weight.numel()
    assert len(casting.pte) < 2 * numbers * 1.25  # two int8 copies, and a float scale for each row of 48
    assert casting.check is not None
    assert casting.check.passed
    assert [h.op.split(".")[-2] for h in casting.host_ops] == ["embedding_byte"]
    assert "one scale for each row" in casting.plan.why("embedding")


def test_a_scope_keeps_the_table_in_float() -> None:
    casting = cast({"scopes": [{"op": "embedding", "precision": "float"}]})
    assert len(casting.pte) > 4 * NET.table.weight.numel()
    assert [h.op for h in casting.host_ops] == ["embedding.default"]


def test_a_plan_with_a_table_is_read_again_from_json() -> None:
    plan = ingot.Plan.from_json(cast().plan.to_json())
    again = ingot.lower(ingot.capture(NET, BATCHES[0]), plan)
    check = ingot.verify(again, BATCHES)
    assert check.passed


def test_a_float_cast_keeps_the_table_in_float() -> None:
    assert [h.op for h in cast({"quantize": False}).host_ops] == ["embedding.default"]
