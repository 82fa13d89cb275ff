"""Graphs as ExportedPrograms and back, with the names of their nodes: plans and reports refer to these."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ingot.capture.export import Program, flat_module, restore_state
from ingot.core.fx import copied

NAME = "ingot_name"  # in the custom meta data, which torch.export keeps
KEPT = ("ingot_value", "ingot_float")  # meta data of ours that is kept beside it


def as_exported(module: GraphModule, program: Program) -> ExportedProgram:
    """`module` takes and returns what `program` does."""
    marked = copied(module)
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
    names = {n: custom[NAME] for n in module.graph.nodes if NAME in (custom := n.meta.get("custom") or {})}
    for number, node in enumerate(names):  # in two steps: a name may still be another node's
        node._rename(f"renamed_{number}")
    for node, name in names.items():
        node._rename(name)
        _restore_meta(node)
    module.recompile()
    return module


def _restore_meta(node: Node) -> None:
    custom = node.meta["custom"]
    node.meta.update({k: custom[k] for k in KEPT if k in custom})
    node.meta["custom"] = {k: v for k, v in custom.items() if k not in (*KEPT, NAME)}
