"""Vela's tables, read as data: rows and columns, and tables of another form."""

from __future__ import annotations

import pytest

from ingot.errors import LowerError
from ingot.targets.arm import performance

ROW = "Original Operator,NNG Operator,Staging Usage,Op Cycles,NPU,SRAM AC,MAC Count,Name\nAdd,Add,8,4,4,2,0,a, b\n"


def test_a_comma_in_a_name() -> None:
    (row,) = performance.csv_rows(ROW.encode())
    layer = performance._layer(row, 128, ["sram"])
    assert (layer.name, layer.access_cycles, layer.limit) == ("a, b", {"sram": 2}, "npu")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Op Cycles", "Cycles", "column 'Op Cycles' is missing"),
        ("8,4,4", "8,nan,4", "'nan' in the column 'Op Cycles' is not a number"),
        ("Add,Add,8,4,4,2,0,a, b\n", "", "the table is empty"),
        ("4,2,0,a, b", "4", "column 'MAC Count' is missing"),
    ],
)
def test_tables_of_another_form(old: str, new: str, said: str) -> None:
    with pytest.raises(LowerError, match=said):
        [performance._layer(row, 128, ["sram"]) for row in performance.csv_rows(ROW.replace(old, new).encode())]
