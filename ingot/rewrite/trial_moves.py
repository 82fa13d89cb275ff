"""Ops that only move elements, of values that are not float: found by running the op on numbered elements.

The probe of op_semantics is for float values: two booleans cannot be told apart.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ingot.core.fx import constant_of, value_of


def moves_by_trial(node: Node, source: Node) -> bool:
    """Each output element is an element of `source`, at a place that does not depend on the values."""
    if node.kwargs or not all(isinstance(value_of(n), torch.Tensor) for n in (node, source)):
        return False  # an item of a tuple
    numbered = torch.arange(value_of(source).numel(), dtype=torch.float64).reshape(tuple(value_of(source).shape))
    try:
        first, second = (_run(node, source, x) for x in (numbered, -3.5 - numbered))
    except Exception:  # an op that takes no floats moves nothing that has a float form
        return False
    places = first.reshape(-1).long()
    known = first.numel() > 0 and bool(((places >= 0) & (places < numbered.numel())).all())
    return known and torch.equal(second.reshape(-1), (-3.5 - numbered).reshape(-1)[places])


def _run(node: Node, source: Node, x: torch.Tensor) -> torch.Tensor:
    args = torch.fx.map_arg(node.args, lambda n: x if n is source else constant_of(n))
    with torch.no_grad():
        out: torch.Tensor = node.target(*args)  # type: ignore[operator]
    return out
