"""index_select(x, dim, index) -> index_select(x, dim, int32(index)): Arm takes computed indices of 32 bits only."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, constant_of, value_name, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    """An index of more elements than int32 counts has no place in memory."""
    if node.target is not aten.index_select.default:
        return None
    x, dim, index = node.args
    wide = isinstance(index, Node) and constant_of(index) is None and value_of(index).dtype == torch.int64
    if not wide:
        return None
    narrow: Any = call(node, aten.to.dtype, index, torch.int32)
    narrow.meta["ingot_value"] = f"arm.{value_name(node)}.{narrow.name}"
    return call(node, aten.index_select.default, x, dim, narrow)


RULE = Rule("arm-indices-of-32-bits", _rewrite)
