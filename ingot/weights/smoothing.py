"""linear(x, w) -> linear(x / s, w * s): channels that stand out take the range of a whole token, weights have room

Where activations are rounded by token, one loud channel makes the steps of all the others coarse. What is divided out
of it is multiplied into the weights, which have a scale a row (SmoothQuant, Xiao et al., 2022); how much is weighed by
the noise that both roundings are expected to add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.graph import add_constant, call, constant_of, copied
from ingot.semantics import operands
from ingot.weights.moments import Read
from ingot.weights.rewrite import rounded_by_model
from ingot.weights.scheme import Layer

aten = torch.ops.aten
ROWS = 4096
WORTH = 0.8  # of the noise without it is the most that it may leave


def smoothed(
    module: GraphModule, layers: Sequence[Layer], read: Mapping[str, Read]
) -> tuple[GraphModule, dict[str, Read]]:
    """A copy in which the linears of eight bits read even channels, where that is worth it; and what they read then."""
    made, now = copied(module), dict(read)
    for x, readers in _readers(made, [n for n in layers if n.bits == 8 and n.name in read]).items():
        seen = read[readers[0].name]
        factors = _factors([_weight(n) for n in readers], seen)
        if factors is not None:
            _divide(made, x, readers, factors)
            now |= dict.fromkeys([n.name for n in readers], seen.divided(factors))
    made.graph.eliminate_dead_code()
    made.recompile()
    return made, now


def _readers(module: GraphModule, layers: Sequence[Layer]) -> dict[Node, list[Node]]:
    wanted, found = {n.name for n in layers}, dict[Node, list[Node]]()
    for node in module.graph.nodes:
        if node.name in wanted and not rounded_by_model(node.args[0]):
            found.setdefault(node.args[0], []).append(node)
    return found


def _weight(node: Node) -> Tensor:
    weight = constant_of(operands(node)[1])
    assert weight is not None  # it is a layer
    return weight.detach().float()


def _factors(weights: list[Tensor], read: Read) -> Tensor | None:
    """By which each channel is divided: half of how loud it is goes over to the weights; None where it gains little."""
    heavy = torch.stack([w.abs().amax(0) for w in _parts(weights)]).amax(0).clamp_min(1e-5)
    s = (read.peak.clamp_min(1e-5) / heavy).sqrt()
    return s if _noise(weights, read, s) < WORTH * _noise(weights, read, torch.ones_like(s)) else None


def _parts(weights: list[Tensor]) -> Iterator[Tensor]:
    """Some rows at a time: a head is the largest weight of all, and copies of it would be too."""
    return (rows for w in weights for rows in w.split(ROWS))


def _noise(weights: list[Tensor], read: Read, s: Tensor) -> float:
    """Mean squares of what the roundings of activations (a step a token) and of weights (a step a row) add."""
    token, second = (read.peak / s).amax() * 2 / 255, (read.second.diagonal() / s**2).sum()
    noise = 0.0
    for part in _parts(weights):
        scaled = part * s
        row = scaled.abs().amax(1) / 127
        noise += float(token**2 * scaled.square().sum() + row.square().sum() * second)
    return noise


def _divide(module: GraphModule, x: Node, readers: list[Node], s: Tensor) -> None:
    even = _even(module, x, readers, s)
    for node in readers:
        weight = add_constant(module, _weight(node) * s, f"{node.name}_scaled", node)
        node.update_arg(0, even)
        node.update_arg(1, weight)


def _even(module: GraphModule, x: Node, readers: list[Node], s: Tensor) -> Node:
    """x / s; inside the factor of a norm, where nobody else reads it."""
    first = readers[0]
    y, factor = _factor_of(x)
    if factor is not None and set(x.users) <= set(readers):
        return call(first, aten.mul.Tensor, y, add_constant(module, factor / s, f"{x.name}_even", first))
    return call(first, aten.mul.Tensor, x, add_constant(module, 1 / s, f"{x.name}_even", first))


def _factor_of(x: Node) -> tuple[Any, Tensor | None]:
    if x.target is not aten.mul.Tensor or x.kwargs:
        return x, None
    for y, c in (x.args, x.args[::-1]):
        found = constant_of(c) if isinstance(c, Node) else None
        if found is not None and found.dim() == 1:
            return y, found.detach()
    return x, None
