"""Operands of an op that broadcasts, as factored values: common factors in each dimension."""

from __future__ import annotations

from torch.fx import Node

from ingot.rewrite.factored_value import Factor, Factored, Unsupported, split


def aligned(node: Node, values: list[Factored], rank: int) -> tuple[list[Factored], list[tuple[Factor, ...]]]:
    """The operands of a broadcasting op with common factors, and the factors of each dimension of its result."""
    dims = list[tuple[Factor, ...]]()
    for back in range(rank, 0, -1):
        values, group = _unified(node, values, back)
        dims.append(group)
    return values, dims


def _unified(node: Node, values: list[Factored], back: int) -> tuple[list[Factored], tuple[Factor, ...]]:
    """Dimension -back: factors of the same size are made the same, greater static ones split."""
    group, done = list[Factor](), 0
    while True:
        tails = {k: v.dims[-back][done:] for k, v in enumerate(values) if len(v.dims) >= back and v.dims[-back]}
        if not tails or not any(tails.values()):
            return values, tuple(group)
        if not all(tails.values()):
            raise Unsupported
        heads = {k: t[0] for k, t in tails.items()}
        least = min(heads.values(), key=lambda f: int(f.size) if f.static else 0)
        unroll = any(f in values[k].unrolled for k, f in heads.items())
        for k, f in heads.items():
            values[k], heads[k] = _split_head(node, values[k], f, least, unroll)
        common = Factor(least.size)
        values = [renamed(v, heads[k], common) if k in heads else v for k, v in enumerate(values)]
        group.append(common)
        done += 1


def _split_head(node: Node, value: Factored, factor: Factor, least: Factor, unroll: bool) -> tuple[Factored, Factor]:
    if factor.size != least.size:
        if not (factor.static and least.static) or int(factor.size) % int(least.size):
            raise Unsupported
        value, high, _ = split(node, value, factor, int(factor.size) // int(least.size))
        return value, high
    if unroll and factor in value.axes:
        if not factor.static:
            raise Unsupported
        value, high, _ = split(node, value, factor, 1)
        return value, high
    return value, factor


def renamed(value: Factored, old: Factor, new: Factor) -> Factored:
    def name(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
        return tuple(new if f is old else f for f in factors)

    return Factored(tuple(map(name, value.dims)), name(value.axes), name(value.unrolled), value.parts)
