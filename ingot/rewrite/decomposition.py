"""Rewrites written as functions of tensors: they are traced, and the ops of the trace replace the op.

Such a function can be compared with torch on its own. Rules that build nodes one by one are in `rule.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.capture.canonicalize.passes import PASSES
from ingot.core.fx import (
    calls,
    distinct_values,
    fake_mode_of,
    has_symbols,
    inherited_meta,
    source_of,
    value_name,
    value_of,
)
from ingot.core.symbolic_sizes import element_count


class Declined(Exception):
    """Raised by a function that does not cover the given arguments."""


def _always(node: Node) -> bool:
    return True


@dataclass(frozen=True)
class Decomposition:
    """`functions`: op -> a function of its arguments that computes the same with other ops.

    It returns None for a result of a tuple that it cannot give: the op is kept where that result is read. A target
    sets `wanted`, whether an op has to be replaced at all, and `required`: the op runs nowhere, so its replacement is
    not judged by fragmentation.
    """

    name: str
    functions: Mapping[Any, Callable[..., Any]] = field(hash=False)
    float_reason: str = ""  # why all new ops are planned in float; empty: they may be integers
    wanted: Callable[[Node], bool] = _always
    required: bool = False

    def apply(self, module: GraphModule) -> list[str]:
        """Replace all matches; returns them as node names with the user's source lines."""
        before = set(module.graph.nodes)
        places = [place for node in calls(module) if (place := self._replace(module, node)) is not None]
        if places:
            canonicalize_again(module)
            for new in calls(module) if self.float_reason else ():
                new.meta.update({} if new in before else {"ingot_float": self.float_reason})
        return places

    def _replace(self, module: GraphModule, node: Node) -> str | None:
        function = self.functions.get(node.target)
        graph = None if function is None or not self.wanted(node) else traced(function, module, node)
        return None if graph is None else inline(node, graph)


def canonicalize_again(module: GraphModule) -> None:
    """Weights that a function cut and counted become constants, selections become slices."""
    for each in PASSES:
        each.run(module)


def traced(function: Callable[..., Any], module: GraphModule, node: Node) -> Graph | None:
    """The function as a graph over the op's operands: composite ops such as conv2d stay whole.

    None where it does not cover the arguments: symbolic shapes among them, but for pointwise ops of one tensor.
    """
    if not has_static_shapes(node) and not _reads_no_size(node):
        return None
    sources = list(dict.fromkeys(node.all_input_nodes))

    def on_operands(*values: Any) -> Any:
        known = dict(zip(sources, values, strict=True))
        return function(*torch.fx.map_arg(node.args, known.get), **torch.fx.map_arg(node.kwargs, known.get))

    try:
        with torch.no_grad(), fake_mode_of(module):
            graph = make_fx(on_operands, pre_dispatch=True)(*distinct_values(sources)).graph
    except (Declined, NotImplementedError):
        return None
    plain = all(n.op in ("placeholder", "call_function", "output") for n in graph.nodes)  # no tensor of its own
    return graph if plain and _gives_what_is_read(node, graph) else None


def has_static_shapes(node: Node) -> bool:
    values = torch.utils._pytree.tree_leaves([value_of(n) for n in (*node.all_input_nodes, node)])
    return all(isinstance(v, torch.Tensor) and not has_symbols(v.shape) for v in values)


def _reads_no_size(node: Node) -> bool:
    """A pointwise op of one tensor is made of such ops."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) and len(node.all_input_nodes) == 1


def _gives_what_is_read(node: Node, graph: Graph) -> bool:
    results: Any = graph.output_node().args[0]
    if isinstance(results, Node):
        return True
    return all(u.target is operator.getitem and results[u.args[1]] is not None for u in node.users)


def inline(node: Node, graph: Graph) -> str:
    """Replace the op by a graph over its operands; returns the op's name and source line."""
    place = f"{node.name} ({source_of(node)})"
    known = dict(zip(graph.find_nodes(op="placeholder"), dict.fromkeys(node.all_input_nodes), strict=True))
    with node.graph.inserting_before(node):
        for part in (n for n in graph.nodes if n.op == "call_function"):
            known[part] = node.graph.node_copy(part, known.__getitem__)
            known[part].meta = {**inherited_meta(node), **_planned_float(node), "val": value_of(part)}
    results: Any = torch.fx.map_arg(graph.output_node().args[0], known.__getitem__)
    made = set(known.values()) - set(node.all_input_nodes)
    if isinstance(results, Node):
        _take_place(node, results, made)
    else:
        for item in list(node.users):
            _take_place(item, results[item.args[1]], made)
        node.graph.erase_node(node)
    return place


def _planned_float(node: Node) -> dict[str, Any]:
    """What replaces an op that is planned in float is planned in float."""
    return {key: node.meta[key] for key in ("ingot_float",) if key in node.meta}


def _take_place(node: Node, new: Node, made: set[Node]) -> None:
    """The new node keeps the value's name: recorded statistics stay valid.

    So does the op that computes the value, if the new node only gives it another shape or order.
    """
    name, source = value_name(node), new
    while source in made:
        source.meta.setdefault("ingot_value", name)
        if not _only_reorders(source):
            break
        source = source.all_input_nodes[0]
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def _only_reorders(node: Node) -> bool:
    """A view of all elements: reshape, permute, squeeze, unsqueeze …"""
    op: Any = node.target
    if op is not torch.ops.aten.reshape.default and not getattr(op, "is_view", False):
        return False
    return element_count(value_of(node).shape) == element_count(value_of(node.all_input_nodes[0]).shape)
