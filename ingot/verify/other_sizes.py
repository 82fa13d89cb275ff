"""Inputs of other sizes, made from a real batch: a program with dynamic shapes is executed at five of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy.numbers import int_oo

from ingot.capture.export import Program
from ingot.capture.sizes import cropped_or_repeated
from ingot.core.fx import value_of
from ingot.core.symbolic_sizes import expression, is_symbolic

STEPS = 5  # the least size, the largest, and three between


@dataclass(frozen=True)
class Sized:
    """A batch, and the sizes that it has."""

    text: str
    batch: tuple[Any, ...]


def sized_batches(program: Program, batch: tuple[Any, ...]) -> list[Sized]:
    """The batch cropped or repeated, all dynamic dimensions from their least to their largest size."""
    values = [value_of(n) for n in program.module.graph.nodes if n.op == "placeholder"]
    limits = dict(_limits(values, program.dynamic_shapes or ()))
    made = dict[str, Sized]()
    for step in range(STEPS) if limits else ():
        chosen = {s: low + round((high - low) * step / (STEPS - 1)) for s, (low, high) in limits.items()}
        resized = tuple(_resized(x, v, chosen) for x, v in zip(batch, values, strict=True))
        text = ", ".join(str(tuple(x.shape)) for x in resized if isinstance(x, torch.Tensor))
        made[text] = Sized(text, resized)
    return list(made.values())


def _limits(values: list[Any], declared: Sequence[Any]) -> Iterator[tuple[sympy.Symbol, tuple[int, int]]]:
    """The range of each symbol, as declared where the size is that symbol; without a bound, the example's size."""
    for i, value in enumerate(values):
        sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else ()
        for dim, size in enumerate(sizes):
            for symbol in expression(size).free_symbols if is_symbolic(size) else ():
                bounds, hint = size.node.shape_env.var_to_range[symbol], _example_size(size, symbol)
                low, high = max(1, int(bounds.lower)), hint if bounds.upper == int_oo else int(bounds.upper)
                given = (declared[i] or {}).get(dim) if i < len(declared) and expression(size) == symbol else None
                low, high = getattr(given, "min", None) or low, getattr(given, "max", None) or high
                yield symbol, (low, high)


def _example_size(size: Any, symbol: sympy.Symbol) -> int:
    return int(size.node.shape_env.backed_var_to_val.get(symbol, 1))


def _resized(x: Any, like: Any, chosen: Mapping[sympy.Symbol, int]) -> Any:
    for dim, size in enumerate(like.shape) if isinstance(like, torch.Tensor) else ():
        if is_symbolic(size):
            wanted = int(expression(size).subs(chosen))
            x = cropped_or_repeated(x, dim, wanted)
    return x
