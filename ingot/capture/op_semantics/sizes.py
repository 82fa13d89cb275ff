"""Concrete values for symbolic sizes, and reduced shapes for big tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

UNKNOWN_SIZE = 4  # replaces a data-dependent size
SMALL_SIZE = 8  # big sizes are reduced to SMALL_SIZE, SMALL_SIZE + 1, … in increasing order
BIG_NUMEL = 1 << 12  # operands with more elements are probed with reduced sizes first


def concrete(value: Any) -> Any:
    """The example value of a symbolic number, or a small number if it has none."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    if value.node.has_hint():
        return kind(value.node.hint)
    expr = value.node.expr
    return kind(expr.subs(dict.fromkeys(expr.free_symbols, UNKNOWN_SIZE)))


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The concrete shape."""
    return tuple(concrete(s) for s in tensor.shape)


def symbolic_shape(tensor: torch.Tensor) -> tuple[str, ...]:
    """The shape as text. Comparing SymInts would add a guard to the user's program."""
    return tuple(str(s.node.expr) if isinstance(s, torch.SymInt) else str(s) for s in tensor.shape)


def shrink_map(values: Iterable[Any]) -> dict[int, int]:
    """Big sizes of these tensors -> small ones in the same order, so that a slice stays a slice."""
    tensors = [t for v in values for t in tree_leaves(v) if isinstance(t, torch.Tensor)]
    sizes = sorted({s for t in tensors for s in shape_of(t) if s > SMALL_SIZE})
    return {size: SMALL_SIZE + i for i, size in enumerate(sizes)}


def takes_sizes(target: Any, index: int | str) -> bool:
    """True if the schema type of the argument is int (sizes, groups, ends). A Scalar is a value: it must not shrink."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return False
    arguments: Mapping[int | str, Any] = {**dict(enumerate(schema.arguments)), **{a.name: a for a in schema.arguments}}
    return index in arguments and "int" in str(arguments[index].type)
