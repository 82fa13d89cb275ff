"""reshape(x, [b, l, h, d]) with two symbolic sizes -> h slices of x, and the ops after it on each of them

XNNPACK infers one size of a reshape from the number of elements: it cannot split heads if batch and length are both
dynamic. Reshapes between are regrouped (see `factored_value.py`); cat joins the heads again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import calls, source_of, value_of
from ingot.core.symbolic_sizes import reshape_argument, symbolic_count
from ingot.rewrite.factored_arithmetic import ARITHMETIC, is_pointwise, pointwise_parts
from ingot.rewrite.factored_movement import MOVEMENT, SHAPE_OPS
from ingot.rewrite.factored_value import Factored, Unsupported, arranged, as_node, joined, moved, whole

aten = torch.ops.aten
_RULES = MOVEMENT | ARITHMETIC


@dataclass(frozen=True)
class SplitDims:
    name: str = "split-dims-as-parts"

    def apply(self, module: GraphModule) -> list[str]:
        return _Parts(module).rewrite() if any(map(_needs_parts, calls(module))) else []


RULE = SplitDims()


def _needs_parts(node: Node) -> bool:
    """A reshape whose result or operand has two symbolic sizes."""
    if node.target not in SHAPE_OPS or not _is_float32(node):
        return False
    return any(symbolic_count(value_of(n).shape) > 1 for n in (node, node.args[0]))  # type: ignore[arg-type]


def _is_float32(node: Any) -> bool:
    val = value_of(node) if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype == torch.float32


class _Parts:
    """Interprets the graph on factored values. Ops without a rule read values that are whole again."""

    def __init__(self, module: GraphModule) -> None:
        self.module, self.known, self.places = module, dict[Node, Factored](), list[str]()
        self.wholes = dict[Node, Node]()

    def rewrite(self) -> list[str]:
        for node in [n for n in self.module.graph.nodes if n.op in ("call_function", "output")]:
            try:
                found = self._parts_of(node)
            except Unsupported:
                found = None
            if found is None:
                self._keep(node)
            else:
                self.known[node] = found
        return self.places

    def _parts_of(self, node: Node) -> Factored | None:
        rule = _RULES.get(node.target) or (pointwise_parts if is_pointwise(node) else None)
        if rule is None or not _is_float32(node) or node.kwargs:
            return None
        read = [n for n in node.all_input_nodes if isinstance(value_of(n), torch.Tensor)]
        if not all(map(_is_float32, read)) or not (_needs_parts(node) or any(n in self.known for n in read)):
            return None
        if _needs_parts(node):
            self.places.append(f"{node.name} ({source_of(node)})")
        return rule(node, lambda n: self.known.get(n) or whole(n))

    def _keep(self, node: Node) -> None:
        for source in [n for n in node.all_input_nodes if n in self.known]:
            node.replace_input_with(source, self._whole(source))

    def _whole(self, node: Node) -> Node:
        """The value as one tensor again; the op itself if its parts cannot be joined."""
        if node not in self.wholes:
            try:
                self.wholes[node] = _joined(node, self.known[node])
            except Unsupported:
                self._keep(node)
                self.wholes[node] = node
        return self.wholes[node]


def _joined(node: Node, value: Factored) -> Node:
    for dim in range(len(value.dims)):
        try:
            value = joined(node, value, dim)
        except Unsupported:
            if any(f in value.unrolled for f in value.dims[dim]):
                raise
    (part,) = value.parts.values()
    factors = [f for d in value.dims for f in d]
    single = all(len(d) < 2 for d in value.dims)
    wanted = [d[0] if d else None for d in value.dims] if single else factors
    made = arranged(node, part, value.axes, wanted)
    if not single:
        made = _regrouped(node, made)
    found: Node = as_node(node, made)
    return found


def _regrouped(node: Node, part: Any) -> Any:
    to = reshape_argument(value_of(node).shape)
    if to is None:
        raise Unsupported
    return moved(node, aten.reshape.default, part, to)
