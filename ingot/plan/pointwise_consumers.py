"""What the reader of a value makes of an error in it: where tanh is flat, or exp nearly zero, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ingot.capture.op_semantics import Kind, operands
from ingot.capture.op_semantics.weighted_ops import is_random
from ingot.plan.noise_model import Points, Reading, mixed
from ingot.plan.state import Place, Work, value_in

Function = Callable[[np.ndarray], np.ndarray]
EQUAL = 1e-9  # up to what a vector instruction may round otherwise


def readings(entries: list[tuple[Place, float]], work: Work) -> Iterator[Reading]:
    """What is rounded in one class, each with how its error is seen: as it is, or behind its one reader."""
    plain: list[tuple[Points, float]] = []
    for place, gain in entries:
        points, reader = work.noise.points(value_in(place)), only_reader(place, work)
        function = function_of(reader) if reader is not None else None
        if reader is None or function is None:
            plain.append((points, gain))
        else:
            yield Reading(points, work.noise.sensitivity(reader), function)
    if plain:
        yield Reading(mixed(plain))


def only_reader(place: Place, work: Work) -> Node | None:
    """The one op that computes with what is rounded in this slot; what lies between only moves it."""
    node, operand = place
    while operand is None or _moves(node, work):
        users = list(node.users)
        if len(users) != 1 or users[0] not in work.precisions:
            return None
        operand = operands(users[0]).index(node)
        node = users[0]
        if work.is_integer(node) and not work.scale_groups.same(place, (node, operand)):
            return None  # it rounds again
    return node


def _moves(node: Node, work: Work) -> bool:
    return bool(work.carried(node)) and work.facts.effects[node].kind is Kind.MOVES


def function_of(node: Node) -> Function | None:
    """What the op does to each number by itself; None where it does anything else. Found by trying."""
    if len(operands(node)) != 1 or operands(node)[0] is not node.args[0] or is_random(node):
        return None
    apply, x = partial(_applied, node), np.linspace(-5, 5, 48)
    try:
        y, turned, few = apply(x), apply(x[::-1])[::-1], apply(x[:7])
        alone = y.shape == x.shape and _alike(turned, y) and _alike(few, y[:7])
    except Exception:  # an op of other ranks or types
        return None
    return apply if alone else None


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, EQUAL, equal_nan=True))


def _applied(node: Node, x: np.ndarray) -> np.ndarray:
    out: Any = node.target(torch.from_numpy(np.ascontiguousarray(x)), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return np.asarray(out.numpy())
