"""A part of a graph as a graph of its own: what computes some values from others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch.fx import Graph, GraphModule, Node


def extracted(module: GraphModule, given: Collection[Node], wanted: Sequence[Node]) -> GraphModule:
    """What computes `wanted` from `given`; constants come along, and what reads a graph input still does."""
    graph, made = Graph(), dict[Node, Node]()
    needed = _needed(given, wanted)
    for node in [n for n in module.graph.nodes if n in needed and (n in given or n.op == "placeholder")]:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in [n for n in module.graph.nodes if n in needed and n not in made]:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[n] for n in wanted))
    return GraphModule(module, graph)


def inputs_of(module: GraphModule, part: GraphModule) -> list[Node]:
    """The values of the whole that the part reads, in its order."""
    by_name = {n.name: n for n in module.graph.nodes}
    return [by_name[str(n.target)] for n in part.graph.nodes if n.op == "placeholder"]


def _needed(given: Collection[Node], wanted: Sequence[Node]) -> set[Node]:
    found, waiting = set[Node](), list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [] if node in given else node.all_input_nodes
    return found
