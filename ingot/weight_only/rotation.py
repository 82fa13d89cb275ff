"""The stream of a decoder turned by an orthogonal matrix, so that no channel stands out where activations are rounded.

A few channels of it are a hundred times as loud as the others, and take the range of every token. Turned, all are
alike, and the weights that read them too; the matrix is inside the weights, at no cost when it runs (QuaRot, Ashkboos
et al., 2024). A head that is tied to its table reads one product more, so that both stay one weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, same_constant, source_of
from ingot.errors import PlanError
from ingot.weight_only.residual_stream import Stream, gain_of, looks_at_channels, stream_of, turn
from ingot.weight_only.scheme import Layer, weight_of
from ingot.weight_only.weight_transforms import Change

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Turned:
    """A stream, the matrix, and the heads that have the very weight of a table."""

    stream: Stream
    by: Tensor
    tied: frozenset[str]
    keeps_gains: bool  # as ones: a kernel has them

    @property
    def changes(self) -> dict[str, Change]:
        """By layer; one may read it and write to it."""
        tables, both = dict.fromkeys(self.stream.tables, Change(self.by)), {*self.stream.writers, *self.stream.readers}
        return {**tables, **{n: self._change(n) for n in both}}

    def _change(self, name: str) -> Change:
        reader, outside = self.stream.readers.get(name), self.by if name in self.stream.writers else None
        if reader is None:
            return Change(outside=outside)
        return Change(self.by, None if name in self.tied else reader.gain, outside)

    def settled(self, module: GraphModule, layers: Sequence[Layer]) -> Turned:
        """When the form of each layer is known: which heads have the numbers of a table."""
        return replace(self, tied=_tied(module, self.stream, {layer.name: layer for layer in layers}))

    def put(self, module: GraphModule, layers: Sequence[Layer]) -> dict[Node, Tensor | None]:
        """Readers without their norms' gains, which are in the weights now; the values that are others then.

        In another method of the model values between the layers may have other names.
        """
        nodes, here = {n.name: n for n in module.graph.nodes}, self._in(module, layers)
        for product in {r.product for r in here.readers.values() if r.product is not None}:
            self._take_out(module, nodes[product])
        for name in self.tied:
            gain = here.readers[name].gain
            if gain is not None:
                _put_gain(module, nodes[name], self.by * gain @ self.by.T)
        return {nodes[n]: self.by for n in here.turned} | {nodes[n]: None for n in here.lost}

    def _take_out(self, module: GraphModule, product: Node) -> None:
        plain, gain = gain_of(product)
        if not self.keeps_gains or gain is None:
            product.replace_all_uses_with(plain)
            return
        ones = same_constant(module, torch.ones_like(gain), f"ones_{len(gain)}", product)
        product.args = tuple(a if a is plain else ones for a in product.args)

    def _in(self, module: GraphModule, layers: Sequence[Layer]) -> Stream:
        found = stream_of(module, layers)
        if found is None or found.ends != self.stream.ends:
            raise PlanError("the methods of this model are not alike", why="one can be rotated", hint="rotate=no")
        return found


def _put_gain(module: GraphModule, reader: Node, gain: Tensor) -> None:
    x, matrix = reader.args[0], add_constant(module, gain, f"{reader.name}_gain", reader)
    reader.update_arg(0, call(reader, aten.linear.default, x, matrix))


def turned(
    module: GraphModule, layers: Sequence[Layer], fixed: Collection[str], keeps_gains: bool = False
) -> Turned | None:
    """None where the program has no such stream, or somebody has rounded a weight already that would have to change."""
    stream = stream_of(module, layers)
    if stream is None or stream.ends & {*fixed}:
        return None
    tied = _tied(module, stream, {layer.name: layer for layer in layers})
    return Turned(stream, turn(stream.width), tied, keeps_gains)


def why_not(module: GraphModule, layers: Sequence[Layer]) -> str:
    """For the user, of a program that was not turned; nothing where it has no stream."""
    if stream_of(module, layers) is not None:
        return "not rotated: some of its weights came rounded"
    node = looks_at_channels(module, layers)
    if node is None:
        return ""
    what = "an output" if node.op == "output" else f"{node.name} ({source_of(node)})"
    return f"not rotated: {what} looks at single channels of what runs from block to block"


def _tied(module: GraphModule, stream: Stream, layers: Mapping[str, Layer]) -> frozenset[str]:
    """Heads that are stored as a table is."""
    nodes = {n.name: n for n in module.graph.nodes}
    forms = {name: _form(nodes[name], layers[name]) for name in (*stream.tables, *stream.readers)}
    tables = {forms[name] for name in stream.tables}
    return frozenset(name for name in stream.readers if forms[name] in tables)


def _form(node: Node, layer: Layer) -> tuple[int, int, int]:
    return weight_of(node).data_ptr(), layer.bits, layer.group
