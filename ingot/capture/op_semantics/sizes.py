"""Symbolic sizes made concrete, and big shapes made small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

UNKNOWN = 4  # stands for a size only the data knows
SMALL = 8  # big sizes shrink to SMALL, SMALL + 1, … in their own order
BIG = 1 << 12  # operands with more elements than this are tried small first


def concrete(value: Any) -> Any:
    """A symbolic number as the number it had in the example, or as a small one if it had none."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    if value.node.has_hint():
        return kind(value.node.hint)
    expr = value.node.expr
    return kind(expr.subs(dict.fromkeys(expr.free_symbols, UNKNOWN)))


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(concrete(s) for s in tensor.shape)


def symbolic_shape(tensor: torch.Tensor) -> tuple[str, ...]:
    """The shape as text: comparing SymInts themselves would add a guard to the user's program."""
    return tuple(str(s.node.expr) if isinstance(s, torch.SymInt) else str(s) for s in tensor.shape)


def shrink_map(values: Iterable[Any]) -> dict[int, int]:
    """Big sizes of all these tensors -> small ones, order kept (so a slice stays a slice)."""
    tensors = [t for v in values for t in tree_leaves(v) if isinstance(t, torch.Tensor)]
    sizes = sorted({s for t in tensors for s in shape_of(t) if s > SMALL})
    return {size: SMALL + i for i, size in enumerate(sizes)}


def takes_sizes(target: Any, index: int | str) -> bool:
    """Whether an argument holds integers proper (sizes, groups, ends); a Scalar is a value and must not shrink."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return False
    arguments: Mapping[int | str, Any] = {**dict(enumerate(schema.arguments)), **{a.name: a for a in schema.arguments}}
    return index in arguments and "int" in str(arguments[index].type)
