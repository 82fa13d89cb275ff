"""What a rewriting rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, replace, source_of, value_name, value_of


@dataclass(frozen=True)
class Rule:
    """`rewrite(node)` returns the node that takes its place, or None where the rule does not match."""

    name: str
    rewrite: Callable[[Node], Node | None]

    def apply(self, module: GraphModule) -> list[str]:
        """Rewrite everywhere; the places, in the user's terms."""
        places = []
        for node in calls(module):
            new = self.rewrite(node) if _is_float32(node) else None
            if new is not None:
                places.append(f"{node.name} ({source_of(node)})")
                _take_place(node, new)
        return places


def in_float(node: Node, reason: str, target: Any, *args: Any) -> Node:
    """Insert `target(*args)` before `node`, to be computed in float for the given reason."""
    new = call(node, target, *args)
    new.meta["ingot_float"] = reason
    return new


def _is_float32(node: Node) -> bool:
    """Rules are written and checked for float32; elsewhere their order of rounding could show."""
    val = value_of(node)
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32


def _take_place(node: Node, new: Node) -> None:
    """The value keeps its identity: what was recorded under the old name holds for the new node."""
    new.meta["ingot_value"] = value_name(node)
    replace(node, new)
