"""What a target would leave to the host, by asking it op by op: the measure by which a rewrite is kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from ingot.core.fx import calls, is_float


@dataclass(frozen=True, order=True)
class Fragmentation:
    """Less is better. A cut: a delegate has to end before an op of the host that reads what it makes."""

    host: int
    cuts: int

    def saved_by(self, after: Fragmentation) -> str:
        return f"{_change(self.host, after.host, 'op')} on the host, {_change(self.cuts, after.cuts, 'cut')}"


def _change(before: int, after: int, what: str) -> str:
    count, word = abs(before - after), "fewer" if after < before else "more"
    return f"{count} {what}{'' if count == 1 else 's'} {word}" if count else f"no {what} fewer"


def fragmentation(module: GraphModule, ability: Callable[[Node], Any]) -> Fragmentation:
    """Of the ops that give float tensors: index arithmetic and masks are made at the edge, from inputs."""
    ops = [n for n in calls(module) if is_float(n) and n.target is not operator.getitem]
    host = {n for n in ops if not ability(n).runs}
    delegated = set(ops) - host
    cuts = sum(any(_maker(source) in delegated for source in n.all_input_nodes) for n in host)
    return Fragmentation(len(host), cuts)


def _maker(node: Node) -> Node:
    """What is taken from a tuple is where the tuple is made."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node
