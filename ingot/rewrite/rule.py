"""Rewrite rules on single ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, replace, source_of, value_name, value_of


@dataclass(frozen=True)
class Rule:
    """`rewrite(node)` returns the replacement of a node, or None if the rule does not match."""

    name: str
    rewrite: Callable[[Node], Node | None]

    def apply(self, module: GraphModule) -> list[str]:
        """Rewrite all matches; returns them as node names with the user's source lines."""
        places = []
        for node in calls(module):
            new = self.rewrite(node) if _is_float32(node) else None
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                _take_place(node, new)
        return places


def in_float(node: Node, reason: str, target: Any, *args: Any) -> Node:
    """Insert `target(*args)` before `node`, planned in float for the given reason."""
    new = call(node, target, *args)
    new.meta["ingot_float"] = reason
    return new


def _is_float32(node: Node) -> bool:
    """Rules are checked in float32; in other dtypes a new order of operations may change the result."""
    val = value_of(node)
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32


def _take_place(node: Node, new: Node) -> None:
    """The new node keeps the value's name: recorded statistics stay valid."""
    new.meta["ingot_value"] = value_name(node)
    replace(node, new)
