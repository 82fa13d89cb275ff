"""Which functions become a table in the delegate: asked of the pass that makes tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.fx import Node


def tabulated(node: Node) -> bool:
    return node.target in _tabulated()


@cache
def _tabulated() -> frozenset[Any]:
    from executorch.backends.arm._passes.insert_table_ops import TableOps

    return frozenset(op._op for op in TableOps.included_ops())
