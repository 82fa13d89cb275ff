"""What a scheme is, and which form each layer gets: a group that divides its width, never left out in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of, source_of

aten = torch.ops.aten
UNIT = 32  # kernels take groups of a multiple of this, or whole rows


@dataclass(frozen=True)
class Scheme:
    """Bits of a weight; and whether activations are int8, each token by its own range, found when it runs."""

    name: str
    bits: int
    dynamic: bool


SCHEMES = {
    s.name: s
    for s in (Scheme("8da4w", 4, True), Scheme("8da8w", 8, True), Scheme("4w", 4, False), Scheme("8w", 8, False))
}


@dataclass(frozen=True)
class Layer:
    """One weight: how it is stored, and what it takes in the file."""

    name: str
    kind: str  # linear or embedding
    rows: int
    width: int
    bits: int
    group: int  # numbers with one scale; the width where a row has one
    source: str
    same_as: str = ""  # the layer before that has this very weight: it is stored once

    @property
    def bytes(self) -> int:
        """Codes, and two bytes a scale where groups have them, four where rows do."""
        if self.same_as:
            return 0
        scales = self.rows * (self.width // self.group)
        return self.rows * self.width * self.bits // 8 + scales * (2 if self.group < self.width else 4)


def layers_of(module: GraphModule, bits: int, group: int, embedding_bits: int, head_bits: int) -> tuple[Layer, ...]:
    """Every linear and every embedding with a constant weight, in order; what gives the outputs is a head."""
    found, first = list[Layer](), dict[tuple[str, int, int], str]()
    for node in _weighted(module):
        kind = "embedding" if node.target is aten.embedding.default else "linear"
        mine = embedding_bits if kind == "embedding" else head_bits if _is_head(node) else bits
        rows, width = weight_of(node).shape
        own = (kind, mine, weight_of(node).data_ptr())
        form = (mine, group_for(width, mine, group))
        found.append(Layer(node.name, kind, rows, width, *form, source_of(node), first.get(own, "")))
        first.setdefault(own, node.name)
    return tuple(found)


def _weighted(module: GraphModule) -> Iterator[Node]:
    for node in module.graph.nodes:
        at = {aten.linear.default: 1, aten.embedding.default: 0}.get(node.target)
        ours = node.meta.get("ingot_float")  # a product that a rewrite made
        if at is not None and not ours and constant_of(operands(node)[at]) is not None:
            yield node


def weight_of(node: Node) -> torch.Tensor:
    found = constant_of(operands(node)[0 if node.target is aten.embedding.default else 1])
    assert found is not None
    return found


def has_known_bias(linear: Node) -> bool:
    """A constant, or none: else it cannot change with the weight."""
    bias = linear.args[2] if len(linear.args) > 2 else linear.kwargs.get("bias")
    return bias is None or (isinstance(bias, Node) and constant_of(bias) is not None and "bias" not in linear.kwargs)


def _is_head(node: Node) -> bool:
    """What it gives is returned, at once or moved about: logits of tokens."""
    seen: Sequence[Node] = [node]
    while seen and all(len(n.users) == 1 for n in seen):
        users = [u for n in seen for u in n.users]
        if any(u.op == "output" for u in users):
            return True
        seen = [u for u in users if u.op == "call_function" and "linear" not in str(u.target) and len(operands(u)) == 1]
    return False


def group_for(width: int, bits: int, wanted: int) -> int:
    """The largest group up to the wanted one that kernels take and that divides the width; eight bits go by rows."""
    if bits == 8:
        return width
    fitting = [g for g in range(UNIT, min(wanted, width) + 1, UNIT) if width % g == 0]
    return max(fitting, default=width)
