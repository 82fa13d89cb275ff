"""Fragmentation of a graph on a target: host ops and delegate boundaries. A rewrite must not increase it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from ingot.core.fx import calls, is_float


@dataclass(frozen=True, order=True)
class Fragmentation:
    """Less is better. A boundary: a delegate must end before a host op that reads one of its values."""

    host_ops: int
    boundaries: int

    def saved_by(self, after: Fragmentation) -> str:
        ops = _change(self.host_ops, after.host_ops, "host op", "host ops")
        return f"{ops}, {_change(self.boundaries, after.boundaries, 'delegate boundary', 'delegate boundaries')}"


def _change(before: int, after: int, one: str, many: str) -> str:
    count, word = abs(before - after), "fewer" if after < before else "more"
    return f"{count} {word} {one if count == 1 else many}" if count else f"as many {many}"


def fragmentation(module: GraphModule, ability: Callable[[Node], Any]) -> Fragmentation:
    """Counts ops with float results only: index arithmetic and masks run on the host, before the first delegate."""
    ops = [n for n in calls(module) if is_float(n) and n.target is not operator.getitem]
    host = {n for n in ops if not ability(n).runs}
    delegated = set(ops) - host
    boundaries = sum(any(_producer(source) in delegated for source in n.all_input_nodes) for n in host)
    return Fragmentation(len(host), boundaries)


def _producer(node: Node) -> Node:
    """The op that computes a value; for an item of a tuple, the op that returns the tuple."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node
