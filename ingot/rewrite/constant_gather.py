"""flip(x), x[.., index], roll(x), repeat_interleave(x) -> linear(x with that axis last, one-hot rows)

The index is a constant. Exact in int8 too: a weight of 1 is 127 * (1 / 127).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.capture.canonicalize.data_movement import CANONICAL_OPS, as_index_select
from ingot.core.fx import add_constant, call, calls, replace, source_of, value_name, value_of

aten = torch.ops.aten
MAX_WIDTH = 4096  # the weight has about the square of it


@dataclass(frozen=True)
class ConstantGather:
    """`wanted`: the backend refuses the op."""

    wanted: Callable[[Node], bool]
    name: str = "gather-as-matmul"

    def apply(self, module: GraphModule) -> list[str]:
        places = []
        for node in [n for n in calls(module) if n.target not in CANONICAL_OPS]:
            found = as_index_select(node) if self.wanted(node) else None
            if found is not None and value_of(found[0]).shape[found[1]] <= MAX_WIDTH:
                places.append(f"{node.name} ({source_of(node)})")
                select_by_matmul(module, node, *found)
        return places


def select_by_matmul(module: GraphModule, node: Node, x: Node, dim: int, index: list[int]) -> None:
    one_hot = torch.eye(value_of(x).shape[dim], dtype=value_of(x).dtype)[index]
    weight = add_constant(module, one_hot, f"{node.name}_rows", node)
    order = [i for i in range(value_of(x).dim()) if i != dim] + [dim]
    made = call(node, aten.linear.default, _permuted(node, x, order), weight)
    made = _permuted(node, made, [order.index(i) for i in range(len(order))])
    made.meta["ingot_value"] = value_name(node)
    replace(node, made)


def _permuted(node: Node, x: Node, order: list[int]) -> Node:
    return x if order == sorted(order) else call(node, aten.permute.default, x, order)
