"""linear(x, w) -> linear(x / s, w * s): channels that stand out take the range of a whole token, weights have room

Where activations are rounded by token, one loud channel makes the steps of all the others coarse. What is divided out
of it is multiplied into the weights, which have a scale a row (SmoothQuant, Xiao et al., 2022), where both roundings
are expected to add less noise then. Where x is a product, the linear that gives one factor divides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, value_of
from ingot.core.host_memory import ROWS_PER_CHUNK
from ingot.errors import PlanError
from ingot.weight_only.hessian import Read
from ingot.weight_only.insert_qdq import rounded_by_model
from ingot.weight_only.residual_stream import gain_of
from ingot.weight_only.scheme import Layer, has_known_bias, weight_of
from ingot.weight_only.weight_transforms import NONE, Change

aten = torch.ops.aten
WORTH = 0.8  # of the noise without it is the most that it may leave


@dataclass(frozen=True, eq=False)
class Even:
    """Linears that read x / factors; by name, the linear whose rows are divided for that, where there is one."""

    readers: tuple[str, ...]
    factors: Tensor
    source: str | None

    def put(self, module: GraphModule) -> dict[Node, Tensor | None]:
        """Into the program; the values that are others then."""
        wanted = {*self.readers, self.source}
        nodes = {n.name: n for n in module.graph.nodes if n.name in wanted}
        readers = [nodes[n] for n in self.readers]
        x: Any = readers[0].args[0]
        if len({n.args[0] for n in readers}) > 1 or (self.source and not _divides(nodes[self.source], x, readers)):
            why = f"{readers[0].name} reads something else in one of them"
            raise PlanError("the methods of this model are not alike", why=why, hint="method=nearest")
        if self.source is not None:
            return dict.fromkeys((nodes[self.source], x), self.factors)
        _divide(module, readers, self.factors)
        return {}


def evened(
    module: GraphModule, layers: Sequence[Layer], read: Mapping[str, Read], changes: Mapping[str, Change],
    fixed: Collection[str],
) -> list[Even]:  # fmt: skip
    """Of the linears of eight bits, where it is worth it; what reads a stream that is turned is even already."""
    wanted = {n.name for n in layers if n.bits == 8 and changes.get(n.name, NONE).inside is None} & {*read} - {*fixed}
    linears, found = {n.name for n in layers} - {*fixed}, list[Even]()
    for x, readers in _readers(module, wanted).items():
        factors = _factors([changes.get(n.name, NONE).weight(weight_of(n)) for n in readers], read[readers[0].name])
        if factors is not None:
            found.append(Even(tuple(n.name for n in readers), factors, _source(x, readers, linears)))
    return found


def with_even(changes: Mapping[str, Change], even: Sequence[Even]) -> dict[str, Change]:
    made = dict(changes)
    for e in even:
        made |= {n: replace(made.get(n, NONE), columns=e.factors) for n in e.readers}
        if e.source is not None:
            made[e.source] = replace(made.get(e.source, NONE), rows=1 / e.factors)
    return made


def _readers(module: GraphModule, wanted: Collection[str]) -> dict[Node, list[Node]]:
    found = dict[Node, list[Node]]()
    for node in module.graph.nodes:
        if node.name in wanted and not rounded_by_model(node.args[0]):
            found.setdefault(node.args[0], []).append(node)
    return found


def _source(x: Node, readers: Sequence[Node], linears: Collection[str]) -> str | None:
    """A linear that nobody but these depends on, one factor of x."""
    factors = [n for n in x.all_input_nodes if n.name in linears and n.target is aten.linear.default]
    return next((n.name for n in factors if _divides(n, x, readers)), None)


def _divides(linear: Node, x: Node, readers: Sequence[Node]) -> bool:
    """Divided by numbers, it divides what these read and nothing else."""
    product = x.target is aten.mul.Tensor and set(x.users) <= set(readers) and x.args[0] is not x.args[1]
    wide = value_of(linear).shape[-1] == value_of(x).shape[-1]
    return product and wide and set(linear.users) == {x} and has_known_bias(linear)


def _factors(weights: list[Tensor], read: Read) -> Tensor | None:
    """By which each channel is divided: half of how loud it is goes over to the weights; None where it gains little."""
    heavy = torch.stack([w.abs().amax(0) for w in _parts(weights)]).amax(0).clamp_min(1e-5)
    s = (read.peak.clamp_min(1e-5) / heavy).sqrt()
    return s if _noise(weights, read, s) < WORTH * _noise(weights, read, torch.ones_like(s)) else None


def _parts(weights: list[Tensor]) -> Iterator[Tensor]:
    """Some rows at a time: a head is the largest weight of all, and copies of it would be too."""
    return (rows for w in weights for rows in w.split(ROWS_PER_CHUNK))


def _noise(weights: list[Tensor], read: Read, s: Tensor) -> float:
    """Mean squares of what the roundings of activations (a step a token) and of weights (a step a row) add."""
    token, second = (read.peak / s).amax() * 2 / 255, (read.second.diagonal() / s**2).sum()
    noise = 0.0
    for part in _parts(weights):
        scaled = part * s
        row = scaled.abs().amax(1) / 127
        noise += float(token**2 * scaled.square().sum() + row.square().sum() * second)
    return noise


def _divide(module: GraphModule, readers: list[Node], s: Tensor) -> None:
    """x / s; inside the gain of a norm, where nobody else reads it."""
    first, x = readers[0], readers[0].args[0]
    y, gain = gain_of(x)
    alone = gain is not None and set(x.users) <= set(readers)  # type: ignore[union-attr]
    kept, factor = (y, gain / s) if alone and gain is not None else (x, 1 / s)
    even = call(first, aten.mul.Tensor, kept, add_constant(module, factor, f"{x}_even", first))
    for node in readers:
        node.update_arg(0, even)
