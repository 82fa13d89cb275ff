"""The schemes, and the form of each quantized weight: its bits and a group size that divides its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of, source_of, value_of

aten = torch.ops.aten
GROUP_MULTIPLE = 32  # kernels need a group size that is a multiple of this, or the whole row


@dataclass(frozen=True)
class Scheme:
    """Bits of a weight, and whether activations are quantized to int8 at run time, per token."""

    name: str
    bits: int
    dynamic: bool


SCHEMES = {
    s.name: s
    for s in (Scheme("8da4w", 4, True), Scheme("8da8w", 8, True), Scheme("4w", 4, False), Scheme("8w", 8, False))
}


@dataclass(frozen=True)
class WeightLayer:
    """A linear or an embedding with a quantized weight: its form, and its size in the file."""

    name: str
    kind: str  # linear or embedding
    rows: int
    width: int
    bits: int
    group: int  # weights that share a scale; the width where scales are per row
    source: str
    same_as: str = ""  # an earlier layer with the same weight: it is stored once

    @property
    def bytes(self) -> int:
        """Codes and scales: two bytes a scale per group, four bytes a scale per row."""
        if self.same_as:
            return 0
        scales = self.rows * (self.width // self.group)
        return self.rows * self.width * self.bits // 8 + scales * (2 if self.group < self.width else 4)


def find_weight_layers(
    module: GraphModule, bits: int, group: int, embedding_bits: int, head_bits: int
) -> tuple[WeightLayer, ...]:
    """Every linear and embedding with a constant weight, in graph order. A linear that computes an output is a head."""
    found, first = list[WeightLayer](), dict[tuple[str, int, int], str]()
    for node in _nodes_with_weight(module):
        kind = "embedding" if node.target is aten.embedding.default else "linear"
        own_bits = embedding_bits if kind == "embedding" else head_bits if _is_head(node) else bits
        rows, width = weight_of(node).shape
        key = (kind, own_bits, weight_of(node).data_ptr())
        form = (own_bits, group_size_for(width, own_bits, group))
        found.append(WeightLayer(node.name, kind, rows, width, *form, source_of(node), first.get(key, "")))
        first.setdefault(key, node.name)
    return tuple(found)


def _nodes_with_weight(module: GraphModule) -> Iterator[Node]:
    for node in module.graph.nodes:
        at = {aten.linear.default: 1, aten.embedding.default: 0}.get(node.target)
        if at is not None and constant_of(operands(node)[at]) is not None and not _stays_float(node):
            yield node


def _stays_float(node: Node) -> bool:
    """A matrix product that a rewrite inserted, one without rows, or a row of one number: its scale is no smaller."""
    empty = any(isinstance(n, int) and n == 0 for n in value_of(node).shape)
    return empty or weight_of(node).shape[-1] == 1 or bool(node.meta.get("ingot_float"))


def weight_of(node: Node) -> torch.Tensor:
    found = constant_of(operands(node)[0 if node.target is aten.embedding.default else 1])
    assert found is not None
    return found


def has_constant_bias(linear: Node) -> bool:
    """True where the bias is a constant or absent: any other bias cannot be transformed with the weight."""
    bias = linear.args[2] if len(linear.args) > 2 else linear.kwargs.get("bias")
    return bias is None or (isinstance(bias, Node) and constant_of(bias) is not None and "bias" not in linear.kwargs)


def _is_head(node: Node) -> bool:
    """The program returns its result, possibly after unary ops: the logits of tokens."""
    reached: Sequence[Node] = [node]
    while reached and all(len(n.users) == 1 for n in reached):
        users = [u for n in reached for u in n.users]
        if any(u.op == "output" for u in users):
            return True
        reached = [
            u for u in users if u.op == "call_function" and "linear" not in str(u.target) and len(operands(u)) == 1
        ]
    return False


def group_size_for(width: int, bits: int, wanted: int) -> int:
    """The largest supported size up to `wanted` that divides the width, else the whole row; int8 is always per row."""
    if bits == 8:
        return width
    fitting = [g for g in range(GROUP_MULTIPLE, min(wanted, width) + 1, GROUP_MULTIPLE) if width % g == 0]
    return max(fitting, default=width)
