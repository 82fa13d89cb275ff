"""Ops whose edge form has a whole number as an operand: it is lowered as an integer tensor, on the host."""

from __future__ import annotations

from torch.fx import Node

from ingot.core.fx import is_float
from ingot.core.shape_cache import ShapeCache
from ingot.targets.edge_ops import decomposed_nodes, decomposition_key
from ingot.targets.xnnpack.kernels import edge_ops

_known = ShapeCache[bool]()


def has_whole_number_inside(node: Node) -> bool:
    """addcmul(x, y, z) becomes x + 1 * y * z."""
    return is_float(node) and _known.get(decomposition_key(node), lambda: _inside(node))


def _inside(node: Node) -> bool:
    """Of an op that is taken apart: what the partitioner has a config for stays whole."""
    return len(edge_ops(node)) > 1 and any(_takes_whole_number(p) for p in decomposed_nodes(node))


def _takes_whole_number(part: Node) -> bool:
    """In the place of a tensor."""
    schema = getattr(part.target, "_schema", None)
    given = zip(schema.arguments, part.args, strict=False) if schema and is_float(part) else ()
    return any(str(a.type) == "Tensor" and type(value) is int for a, value in given)
