"""Rotation of the residual stream by an orthogonal matrix (QuaRot, Ashkboos et al. 2024).

A few outlier channels are a hundred times as large as the others and set the int8 range of every token. After rotation
all channels have similar ranges, and so have the weights that read them. The matrix is folded into the weights, at no
runtime cost. A head that is tied to its embedding reads through one more matrix, so that both remain one weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, call, same_constant, source_of
from ingot.errors import PlanError
from ingot.weight_only.residual_stream import (
    ResidualStream,
    find_residual_stream,
    norm_gain_of,
    op_blocking_rotation,
    rotation_matrix,
)
from ingot.weight_only.scheme import WeightLayer, weight_of
from ingot.weight_only.weight_transforms import WeightTransform

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Rotation:
    """A stream, its rotation matrix, and the heads that share the stored weight of an embedding."""

    stream: ResidualStream
    matrix: Tensor
    tied: frozenset[str]
    keep_norm_gains: bool  # as ones, where the target fuses a norm and its gain into one kernel

    @property
    def transforms(self) -> dict[str, WeightTransform]:
        """By layer; a linear may both read and write the stream."""
        tables = dict.fromkeys(self.stream.tables, WeightTransform(self.matrix))
        linears = {*self.stream.writers, *self.stream.readers}
        return {**tables, **{n: self._transform(n) for n in linears}}

    def _transform(self, name: str) -> WeightTransform:
        reader, output = self.stream.readers.get(name), self.matrix if name in self.stream.writers else None
        if reader is None:
            return WeightTransform(output_rotation=output)
        return WeightTransform(self.matrix, None if name in self.tied else reader.norm_gain, output)

    def with_forms(self, module: GraphModule, layers: Sequence[WeightLayer]) -> Rotation:
        """With the final bits and groups of the layers: only a head in the form of its embedding stays tied."""
        return replace(self, tied=_tied_heads(module, self.stream, {layer.name: layer for layer in layers}))

    def apply_to(self, module: GraphModule, layers: Sequence[WeightLayer]) -> dict[Node, Tensor | None]:
        """Remove the norm gains, which are folded into the weights. Returns the values that differ from the original.

        Names of values between the layers may differ in another method of the model.
        """
        nodes, here = {n.name: n for n in module.graph.nodes}, self._stream_in(module, layers)
        for product in {r.norm_product for r in here.readers.values() if r.norm_product is not None}:
            self._remove_gain(module, nodes[product])
        for name in self.tied:
            gain = here.readers[name].norm_gain
            if gain is not None:
                _insert_gain_matrix(module, nodes[name], self.matrix * gain @ self.matrix.T)
        return {nodes[n]: self.matrix for n in here.rotated} | {nodes[n]: None for n in here.intermediate}

    def _remove_gain(self, module: GraphModule, product: Node) -> None:
        normalized, gain = norm_gain_of(product)
        if not self.keep_norm_gains or gain is None:
            product.replace_all_uses_with(normalized)
            return
        ones = same_constant(module, torch.ones_like(gain), f"ones_{len(gain)}", product)
        product.args = tuple(a if a is normalized else ones for a in product.args)

    def _stream_in(self, module: GraphModule, layers: Sequence[WeightLayer]) -> ResidualStream:
        found = find_residual_stream(module, layers)
        if found is None or found.layers != self.stream.layers:
            why = "the residual stream can be rotated in one of them only"
            raise PlanError("the methods of this model differ", why=why, hint="rotate=no")
        return found


def _insert_gain_matrix(module: GraphModule, reader: Node, gain: Tensor) -> None:
    x, matrix = reader.args[0], add_constant(module, gain, f"{reader.name}_gain", reader)
    reader.update_arg(0, call(reader, aten.linear.default, x, matrix))


def find_rotation(
    module: GraphModule, layers: Sequence[WeightLayer], prequantized: Collection[str], keep_norm_gains: bool = False
) -> Rotation | None:
    """None where the program has no residual stream, or a prequantized weight would have to change."""
    stream = find_residual_stream(module, layers)
    if stream is None or stream.layers & {*prequantized}:
        return None
    tied = _tied_heads(module, stream, {layer.name: layer for layer in layers})
    return Rotation(stream, rotation_matrix(stream.width), tied, keep_norm_gains)


def why_not_rotated(module: GraphModule, layers: Sequence[WeightLayer]) -> str:
    """A note for the user; empty where the program has no residual stream."""
    if find_residual_stream(module, layers) is not None:
        return "residual stream not rotated: some of its weights are prequantized"
    node = op_blocking_rotation(module, layers)
    if node is None:
        return ""
    if node.op == "output":
        return "residual stream not rotated: the program returns it"
    return f"residual stream not rotated: {node.name} ({source_of(node)}) is not rotation-invariant"


def _tied_heads(module: GraphModule, stream: ResidualStream, layers: Mapping[str, WeightLayer]) -> frozenset[str]:
    """Readers with the stored weight of an embedding."""
    nodes = {n.name: n for n in module.graph.nodes}
    forms = {name: _stored_form(nodes[name], layers[name]) for name in (*stream.tables, *stream.readers)}
    tables = {forms[name] for name in stream.tables}
    return frozenset(name for name in stream.readers if forms[name] in tables)


def _stored_form(node: Node, layer: WeightLayer) -> tuple[int, int, int]:
    return weight_of(node).data_ptr(), layer.bits, layer.group
