"""Which ops become lookup tables (LUT): read from Arm's pass that inserts tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.fx import Node


def is_lut_op(node: Node) -> bool:
    return node.target in _lut_ops()


@cache
def _lut_ops() -> frozenset[Any]:
    from executorch.backends.arm._passes.insert_table_ops import TableOps

    return frozenset(op._op for op in TableOps.included_ops())
