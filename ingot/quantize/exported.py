"""Graphs as ExportedPrograms and back, with the names of their nodes: plans and reports refer to these."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ingot.capture.export import Program, flat_module, restore_state
from ingot.core.fx import copy_graph_module

NAME = "ingot_name"  # in the custom meta data, which torch.export keeps
KEPT = ("ingot_value", "ingot_float")  # meta data of ours that is kept beside it


def as_exported(module: GraphModule, program: Program) -> ExportedProgram:
    """`module` takes and returns what `program` does."""
    marked = copy_graph_module(module)
    for node in marked.graph.nodes:
        ours = {k: str(node.meta[k]) for k in KEPT if k in node.meta}
        node.meta["custom"] = {**(node.meta.get("custom") or {}), **ours, NAME: node.name}
    restore_state(marked, program.state)
    shapes = program.dynamic_shapes
    with torch.no_grad():
        return torch.export.export(marked, program.example_inputs, dynamic_shapes=shapes, strict=False)


def from_exported(exported: ExportedProgram) -> GraphModule:
    """The graph with flat inputs and outputs, and the names it had."""
    module = flat_module(exported)
    graph, copies = Graph(), dict[Node, Node]()
    for node in module.graph.nodes:
        node.name = _named(node)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphModule(module, graph)


def _named(node: Node) -> str:
    """Its name before it was exported; our meta data is put back too."""
    custom = node.meta.get("custom") or {}
    node.meta.update({k: custom[k] for k in KEPT if k in custom})
    node.meta["custom"] = {k: v for k, v in custom.items() if k not in (*KEPT, NAME)}
    return str(custom.get(NAME, node.name))
