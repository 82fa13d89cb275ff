"""Sizes that may be symbolic. Comparing two of them with == would add a guard that ties the user's dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

Size = Any  # int or torch.SymInt


def expression(size: Size) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))


def is_symbolic(size: Size) -> bool:
    return isinstance(size, torch.SymInt) and bool(expression(size).free_symbols)


def symbolic_count(shape: Iterable[Size]) -> int:
    return sum(map(is_symbolic, shape))


def same_size(a: Size, b: Size) -> bool:
    """Equal for every value of the symbols, not only for the example's."""
    return bool(a == b) if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b)


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(map(same_size, a, b))


def element_count(shape: Iterable[Size]) -> sympy.Expr:
    return sympy.expand(math.prod(map(expression, shape), start=sympy.Integer(1)))


def reshape_argument(shape: Sequence[Size]) -> list[int] | None:
    """The shape as integers, with -1 in place of the one symbolic size. None if there are more of these."""
    if symbolic_count(shape) > 1:
        return None
    return [-1 if is_symbolic(size) else int(size) for size in shape]
