"""Extract a subgraph as its own GraphModule."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch.fx import Graph, GraphModule, Node


def extract_subgraph(module: GraphModule, given: Collection[Node], wanted: Sequence[Node]) -> GraphModule:
    """The subgraph that computes `wanted` from `given`. Constants and graph inputs that it reads are included."""
    graph, copies = Graph(), dict[Node, Node]()
    needed = _needed(given, wanted)
    for node in [n for n in module.graph.nodes if n in needed and (n in given or n.op == "placeholder")]:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in [n for n in module.graph.nodes if n in needed and n not in copies]:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in wanted))
    return GraphModule(module, graph)


def subgraph_inputs(module: GraphModule, part: GraphModule) -> list[Node]:
    """The nodes of `module` that are the inputs of `part`, in order."""
    by_name = {n.name: n for n in module.graph.nodes}
    return [by_name[str(n.target)] for n in part.graph.nodes if n.op == "placeholder"]


def _needed(given: Collection[Node], wanted: Sequence[Node]) -> set[Node]:
    """`wanted` and everything it depends on, up to `given`."""
    found, waiting = set[Node](), list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [] if node in given else node.all_input_nodes
    return found
