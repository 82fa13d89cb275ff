"""permute(reshape(permute(x, ..), ..), ..) -> reshape(permute(reshape(x, ..), ..), ..), with as few ops as possible

A chain of reshapes and permutes reads the elements of x in nested loops of constant stride. Each loop is one dimension
of the one permute that replaces the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
MOST_DIMS = 6  # of XNNPACK's tensors, and of TOSA's
_CHAIN_OPS = (aten.reshape.default, aten.permute.default)  # canonical programs move data by these, slice and cat only


@dataclass(frozen=True)
class _Loop:
    """One loop over the source: `size` steps of `stride` elements."""

    size: int
    stride: int


@dataclass(frozen=True)
class _ReshapePermute:
    """reshape to `shape`, permute by `order`, reshape to `to`; ops without effect are not emitted."""

    source: tuple[int, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    to: tuple[int, ...]

    @property
    def permuted(self) -> tuple[int, ...]:
        return tuple(self.shape[i] for i in self.order)

    @property
    def permutes(self) -> bool:
        return self.order != tuple(range(len(self.order)))

    @property
    def op_count(self) -> int:
        return (self.shape != self.source) + self.permutes + (self.permuted != self.to)


def _rewrite(node: Node) -> Node | None:
    chain = _chain(node)
    if len(chain) < 2 or _continues(node):
        return None
    x: Any = chain[0].args[0]
    if has_symbols(value_of(x).shape) or value_of(x).numel() < 2:
        return None
    best = _shortest(chain, x)
    return _emit(node, x, best) if best is not None and _is_better(best, chain) else None


def _is_better(move: _ReshapePermute, chain: list[Node]) -> bool:
    """Fewer ops, or as many on values of fewer dimensions where the chain has more than backends take."""
    dims = max(value_of(n).dim() for n in chain)
    lower = dims > MOST_DIMS and len(move.shape) < dims
    return move.op_count < len(chain) or (lower and move.op_count == len(chain))


def _chain(node: Node) -> list[Node]:
    """The reshapes and permutes that end in `node`, each with the next one as its only consumer."""
    chain = [node] if node.target in _CHAIN_OPS else []
    while chain and _continues(chain[0].args[0]):
        chain.insert(0, chain[0].args[0])  # type: ignore[arg-type]
    return chain


def _continues(arg: Any) -> bool:
    """A reshape or permute whose only consumer is another one."""
    step = isinstance(arg, Node) and arg.target in _CHAIN_OPS and len(arg.users) == 1
    return step and next(iter(arg.users)).target in _CHAIN_OPS


def _shortest(chain: list[Node], x: Node) -> _ReshapePermute | None:
    source, to = tuple(value_of(x).shape), tuple(value_of(chain[-1]).shape)
    numbered = torch.arange(value_of(x).numel()).reshape(source)
    places = _run(chain, numbered).reshape(-1)
    bounds = [((), ()), (_dim_strides(to), ()), ((), _dim_strides(source)), (_dim_strides(to), _dim_strides(source))]
    moves = [_place_unit_dims(_from_loops(_loops(places, *c), source, to)) for c in bounds]
    sound = [m for m in moves if torch.equal(_applied(m, numbered), places)]
    return min(sound, key=lambda m: (m.op_count, len(m.shape)), default=None)


def _run(chain: list[Node], x: torch.Tensor) -> torch.Tensor:
    for node in chain:
        x = node.target(x, *node.args[1:])  # type: ignore[operator]
    return x


def _applied(move: _ReshapePermute, x: torch.Tensor) -> torch.Tensor:
    fits = x.numel() == torch.Size(move.shape).numel()
    return x.reshape(move.shape).permute(move.order).reshape(-1) if fits else x.new_empty(0)


def _dim_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements up to and including each dimension, from the last: (2, 3, 4) -> (4, 12, 24)"""
    return tuple(accumulate(reversed(shape), mul))


def _loops(places: torch.Tensor, bounds: Sequence[int], source_bounds: Sequence[int]) -> list[_Loop]:
    """The loops that read `places`, outermost first. No loop crosses a bound."""
    digits, block = list[_Loop](), 1
    while block < len(places):
        stride = int(places[block])
        size = _loop_size(_loop_size(_run_length(places[::block], stride), block, bounds), stride, source_bounds)
        digits.insert(0, _Loop(size, stride))
        block *= size
    return digits


def _run_length(places: torch.Tensor, stride: int) -> int:
    """The length of the prefix 0, stride, 2 * stride …"""
    other = (places != torch.arange(len(places)) * stride).nonzero()
    return int(other[0]) if len(other) else len(places)


def _loop_size(size: int, step: int, bounds: Sequence[int]) -> int:
    """The steps up to the next bound."""
    reach = next((c for c in bounds if c > step), None)
    return size if reach is None else max(min(size, reach // step), 2)


def _from_loops(digits: list[_Loop], source: tuple[int, ...], to: tuple[int, ...]) -> _ReshapePermute:
    ranked = sorted(digits, key=lambda d: -d.stride)
    return _ReshapePermute(source, tuple(d.size for d in ranked), tuple(ranked.index(d) for d in digits), to)


def _place_unit_dims(move: _ReshapePermute) -> _ReshapePermute:
    """Insert dimensions of size 1 where they save a reshape: as in the source, or as in the result."""
    from_source, to_target = move.shape == _squeezed(move.source), move.permuted == _squeezed(move.to)
    if from_source and (not to_target or move.source.count(1) == move.to.count(1)):
        return _with_unit_dims(move, move.source, to_target)
    return _with_unit_dims(move, (1,) * move.to.count(1) + move.shape, True) if to_target else move


def _with_unit_dims(move: _ReshapePermute, shape: tuple[int, ...], matches_target: bool) -> _ReshapePermute:
    """The same with dimensions of size 1; at their positions in `to` if `matches_target`."""
    ones, others = ([i for i, s in enumerate(shape) if (s == 1) is one] for one in (True, False))
    free, taken = iter(ones), iter(others[i] for i in move.order)
    order = (next(free if s == 1 else taken) for s in move.to) if matches_target else (*free, *taken)
    return _ReshapePermute(move.source, shape, tuple(order), move.to)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s for s in shape if s != 1)


def _emit(node: Node, x: Node, move: _ReshapePermute) -> Node:
    if move.shape != move.source:
        x = _insert(node, aten.reshape.default, x, move.shape)
    if move.permutes:
        x = _insert(node, aten.permute.default, x, move.order)
    return x if move.permuted == move.to else _insert(node, aten.reshape.default, x, move.to)


def _insert(node: Node, op: Any, x: Node, argument: Sequence[int]) -> Node:
    """In float where the chain has to be."""
    reason = node.meta.get("ingot_float")
    return in_float(node, reason, op, x, list(argument)) if reason else call(node, op, x, list(argument))


def _of_many_dims(node: Node) -> Node | None:
    return _rewrite(node) if any(value_of(n).dim() > MOST_DIMS for n in _chain(node)) else None


RULE = Rule("merge-permute-chains", _rewrite)
MANY_DIMS = Rule("permutes-of-fewer-dimensions", _of_many_dims)
