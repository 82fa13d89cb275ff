"""The result of probing an op, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch.fx.node import map_arg


class Kind(StrEnum):
    """What an op does to values. All kinds but CREATES and COMPUTES can run on quantized integers unchanged."""

    MOVES = "moves"  # output elements are input elements, at positions independent of the values
    SELECTS = "selects"  # output elements are input elements, selected by value
    BLENDS = "blends"  # f(a·x + b) = a·f(x) + b, with new elements
    CREATES = "creates"  # the output does not depend on operand values
    COMPUTES = "computes"  # everything else


@dataclass(frozen=True)
class Effect:
    """What one node does to the values of its operands, and why we think so."""

    kind: Kind
    carriers: tuple[int, ...]  # indices into operands(node): float operands whose values and scale the output keeps
    constants: tuple[float, ...]  # sorted constants among the outputs: the zero of a pad, the bounds of a clamp
    identity: bool  # the output equals operand carriers[0] elementwise, with the same shape and dtype
    reason: str  # one sentence with the evidence


def computes(reason: str) -> Effect:
    """An Effect of kind COMPUTES."""
    return Effect(Kind.COMPUTES, (), (), False, reason)


def creates(reason: str) -> Effect:
    """An Effect of kind CREATES."""
    return Effect(Kind.CREATES, (), (), False, reason)


def operands(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The Node arguments in order: nested lists flattened, kwargs after args, duplicates kept."""
    found: list[torch.fx.Node] = []

    def collect(n: torch.fx.Node) -> torch.fx.Node:
        found.append(n)
        return n

    map_arg(node.args, collect)
    map_arg(node.kwargs, collect)
    return tuple(found)
