"""Errors seen through a pointwise consumer: where tanh is flat, an error in its input has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ingot.capture.op_semantics import Kind, operands
from ingot.capture.op_semantics.weighted_ops import is_random
from ingot.plan.noise_model import Distribution, ErrorTerm, PointwiseFunction, mixture
from ingot.plan.solver_state import Point, SolverState, value_at

RELATIVE_TOLERANCE = 1e-9  # vector and scalar code of one function may round differently


def error_terms(points: list[tuple[Point, float]], state: SolverState) -> Iterator[ErrorTerm]:
    """What is rounded in one scale group. An error counts behind its only consumer if that is pointwise."""
    direct: list[tuple[Distribution, float]] = []
    for point, sensitivity in points:
        distribution, consumer = state.noise.distribution(value_at(point)), _sole_consumer(point, state)
        function = pointwise_function(consumer) if consumer is not None else None
        if consumer is None or function is None:
            direct.append((distribution, sensitivity))
        else:
            yield ErrorTerm(distribution, state.noise.sensitivity(consumer), function)
    if direct:
        yield ErrorTerm(mixture(direct))


def _sole_consumer(point: Point, state: SolverState) -> Node | None:
    """The only op that computes with the value of a point; ops that move it are skipped."""
    node, operand = point
    while operand is None or _moves(node, state):
        users = list(node.users)
        if len(users) != 1 or users[0] not in state.precisions:
            return None
        operand = operands(users[0]).index(node)
        node = users[0]
        if state.is_integer(node) and not state.scale_groups.same(point, (node, operand)):
            return None  # it requantizes
    return node


def _moves(node: Node, state: SolverState) -> bool:
    return bool(state.shared_scale_operands(node)) and state.constraints.effects[node].kind is Kind.MOVES


def pointwise_function(node: Node) -> PointwiseFunction | None:
    """The op as a function of single elements; None if it is not pointwise. Found by experiment, on vectors."""
    if len(operands(node)) != 1 or operands(node)[0] is not node.args[0] or is_random(node):
        return None
    apply, x = partial(_apply, node), np.linspace(-5, 5, 48)
    try:
        y, reversed_, few = apply(x), apply(x[::-1])[::-1], apply(x[:7])
        pointwise = y.shape == x.shape and _close(reversed_, y) and _close(few, y[:7])
    except Exception:  # the op takes other ranks or types
        return None
    return apply if pointwise else None


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, RELATIVE_TOLERANCE, equal_nan=True))


def _apply(node: Node, x: np.ndarray) -> np.ndarray:
    """Of a vector, as it was tried: of a matrix, an op with a dimension argument may be another function."""
    out: Any = node.target(torch.from_numpy(np.ravel(x)), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return np.asarray(out.numpy()).reshape(x.shape)
