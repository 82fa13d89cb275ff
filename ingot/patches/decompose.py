"""Decompose an exported program op by op, where torch would trace the whole program again."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.core.fx import distinct_values
from ingot.patches.fake_result_memo import UnkeyableArgument, memo_key
from ingot.patches.version_gate import speed_patches_apply

_TraceMemo = dict[Any, Graph | None]


def decompose_per_op(program: ExportedProgram, table: Any) -> ExportedProgram | None:
    """The program with the ops of `table` decomposed; None where torch has to trace it."""
    if not speed_patches_apply():
        return None
    copied, graph = copy.copy(program), copy.deepcopy(program.graph)
    for before, node in zip(program.graph.nodes, graph.nodes, strict=True):
        node.name = before.name  # a copy renames nodes that are named like Python keywords
    copied._graph_module = GraphModule(program.graph_module, graph)
    copied._graph_signature = copy.deepcopy(program.graph_signature)
    return _renumbered(copied) if decompose_in_place(copied, table) else None


def _renumbered(program: ExportedProgram) -> ExportedProgram:
    """Name all ops as a fresh trace would, then remove unused ones."""
    graph, known = Graph(), dict[Node, Node]()
    for node in program.graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        is_op = isinstance(node.target, torch._ops.OpOverload)
        name = graph._target_to_str(node.target.overloadpacket.__name__) if is_op else None
        made = known[node] = graph.create_node(node.op, node.target, args, kwargs, name)
        made.meta = node.meta
        if node.op == "placeholder":
            made.name = node.name  # also where it is a Python keyword
    graph.eliminate_dead_code()
    program._graph_module = GraphModule(program.graph_module, graph)
    _rename_outputs(program)
    return program


def decompose_in_place(program: ExportedProgram, table: Any) -> bool:
    """Decompose every op of `table`. False, with the program unchanged, where torch has to trace it."""
    ops = [n for n in program.graph.nodes if n.op == "call_function"]
    if not all(_is_functional(n.target) and _has_static_shapes(n) for n in ops):
        return False
    todo = [n for n in ops if _decomposes(n.target, table) or not _stays_whole(n.target)]
    known: _TraceMemo = {}
    parts = [(n, graph) for n in todo if (graph := _memoized_trace(known, n, table)) is not None]
    if len(parts) < len(todo):
        return False
    for node, graph in parts:
        _inline(node, graph)
    if parts:
        _rename_outputs(program)
        program.graph_module.recompile()
    return True


def _decomposes(op: Any, table: Any) -> bool:
    """`op in table`. Only for composite custom ops does torch list all registered ops: that takes time."""
    from torch._export.utils import _is_cia_op

    if op in getattr(table, "decomp_table", table):
        return True
    custom = isinstance(op, torch._ops.OpOverload) and op.namespace != "aten"
    return custom and _is_cia_op(op) and op in table


def _rename_outputs(program: ExportedProgram) -> None:
    """Update the signature: an output may have a new name."""
    out = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    for spec, result in zip(program.graph_signature.output_specs, out.args[0], strict=True):
        if isinstance(result, Node):
            spec.arg.name = result.name


def _is_functional(op: Any) -> bool:
    return not op._schema.is_mutable if isinstance(op, torch._ops.OpOverload) else op is operator.getitem


def _stays_whole(op: Any) -> bool:
    """Functional, and not an op that torch always decomposes (composite implicit: some views, batch norms)."""
    from torch._export.utils import _is_cia_op, _is_preservable_cia_op

    if not isinstance(op, torch._ops.OpOverload):
        return op is operator.getitem
    return _is_functional(op) and (not _is_cia_op(op) or _is_preservable_cia_op(op))


def _has_static_shapes(node: Node) -> bool:
    """Symbolic shapes are left to torch, which tracks their guards."""
    if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
        return True  # an assertion
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return all(isinstance(v, torch.Tensor) and all(isinstance(d, int) for d in v.shape) for v in values)


def _memoized_trace(known: _TraceMemo, node: Node, table: Any) -> Graph | None:
    """The decomposition of an op, traced once for all equal ops: models repeat their blocks."""
    sources = list(dict.fromkeys(node.all_input_nodes))
    arguments = torch.fx.map_arg((node.args, node.kwargs), lambda n: (sources.index(n), n.meta["val"]))
    try:
        key = (node.target, memo_key(arguments))
    except UnkeyableArgument:
        return _trace(node, table)
    if key not in known:
        known[key] = _trace(node, table)
    return known[key]


def _trace(node: Node, table: Any) -> Graph | None:
    sources = list(dict.fromkeys(node.all_input_nodes))
    values = distinct_values(sources)
    target: Any = node.target

    def call_op(*inputs: Any) -> Any:
        known = dict(zip(sources, inputs, strict=True))
        return target(*torch.fx.map_arg(node.args, known.get), **torch.fx.map_arg(node.kwargs, known.get))

    with torch.no_grad(), _fake_mode([values, node.meta["val"]]):
        graph = make_fx(call_op, decomposition_table=table)(*values).graph
    plain = all(n.op in ("placeholder", "call_function", "output") for n in graph.nodes)
    return graph if plain and all(_stays_whole(n.target) for n in graph.nodes if n.op == "call_function") else None


def _fake_mode(values: list[Any]) -> Any:
    return next(v.fake_mode for v in torch.utils._pytree.tree_leaves(values) if hasattr(v, "fake_mode"))


def _inline(node: Node, graph: Graph) -> None:
    """Replace the op by its decomposition. The new nodes inherit its metadata: source line, marks."""
    known = dict(
        zip((n for n in graph.nodes if n.op == "placeholder"), dict.fromkeys(node.all_input_nodes), strict=True)
    )
    kept = {k: v for k, v in node.meta.items() if k not in ("val", "tensor_meta")}
    with node.graph.inserting_before(node):
        for part in (n for n in graph.nodes if n.op == "call_function"):
            known[part] = node.graph.node_copy(part, known.__getitem__)
            known[part].meta = {**kept, "val": part.meta["val"]}
    _replace_uses(
        node, torch.fx.map_arg(next(n for n in reversed(graph.nodes) if n.op == "output").args[0], known.__getitem__)
    )


def _replace_uses(node: Node, result: Any) -> None:
    """`result` is a node, or a tuple for an op whose outputs are read by getitem."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for item in list(node.users):
            item.replace_all_uses_with(result[item.args[1]])
            node.graph.erase_node(item)
    node.graph.erase_node(node)
