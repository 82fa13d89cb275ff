"""The answer of an experiment: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch.fx.node import map_arg


class Kind(str, Enum):  # noqa: UP042 (StrEnum is not in Python 3.10)
    """What an op does to numbers. All but CREATES and COMPUTES can run on quantized integers as they are."""

    MOVES = "moves"  # output elements are input elements, at places that do not depend on the values
    SELECTS = "selects"  # output elements are input elements, chosen by looking at the values
    BLENDS = "blends"  # f(a·x + b) = a·f(x) + b, but the elements are new
    CREATES = "creates"  # the values of the operands do not matter
    COMPUTES = "computes"  # everything else


@dataclass(frozen=True)
class Effect:
    """What one node does to the numbers of its operands, and how we know."""

    kind: Kind
    carriers: tuple[
        int, ...
    ]  # indices into operands(node): float operands whose numbers (and scale) the output carries
    constants: tuple[float, ...]  # values mixed in, sorted: the zero of a pad, the bounds of a clamp
    identity: bool  # the output is operand carriers[0], element for element, same shape and dtype
    reason: str  # one plain sentence of what was seen


def computes(reason: str) -> Effect:
    return Effect(Kind.COMPUTES, (), (), False, reason)


def creates(reason: str) -> Effect:
    return Effect(Kind.CREATES, (), (), False, reason)


def operands(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The Node arguments in order: lists entered, kwargs after args, duplicates kept."""
    found: list[torch.fx.Node] = []

    def collect(n: torch.fx.Node) -> torch.fx.Node:
        found.append(n)
        return n

    map_arg(node.args, collect)
    map_arg(node.kwargs, collect)
    return tuple(found)
