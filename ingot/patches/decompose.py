"""Ops of an exported program taken apart one by one, where a decomposition would trace the whole program anew."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch._export.utils import _is_cia_op, _is_preservable_cia_op
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.patches.memo_key import NoKey, key_of

Known = dict[Any, Graph | None]


def decomposed(program: ExportedProgram, table: Any) -> ExportedProgram | None:
    """A functional program without the ops of `table`; None where torch has to trace it."""
    mine, graph = copy.copy(program), copy.deepcopy(program.graph)
    for before, node in zip(program.graph.nodes, graph.nodes, strict=True):
        node.name = before.name  # a copy has others for words of Python's
    mine._graph_module = GraphModule(program.graph_module, graph)
    mine._graph_signature = copy.deepcopy(program.graph_signature)
    return _named_anew(mine) if opened(mine, table) else None


def _named_anew(program: ExportedProgram) -> ExportedProgram:
    """All ops counted from the start, as if they had been traced; those that nobody reads go afterwards."""
    graph, known = Graph(), dict[Node, Node]()
    for node in program.graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        is_op = isinstance(node.target, torch._ops.OpOverload)
        name = graph._target_to_str(node.target.overloadpacket.__name__) if is_op else None
        made = known[node] = graph.create_node(node.op, node.target, args, kwargs, name)
        made.meta = node.meta
        if node.op == "placeholder":
            made.name = node.name  # also where it is a word of Python's
    graph.eliminate_dead_code()
    program._graph_module = GraphModule(program.graph_module, graph)
    _name_results(program)
    return program


def opened(program: ExportedProgram, table: Any) -> bool:
    """Take every op of `table` apart, in place. False, and nothing done, where that is not enough."""
    ops = [n for n in program.graph.nodes if n.op == "call_function"]
    if not all(_writes_nowhere(n.target) and _has_sizes(n) for n in ops):
        return False
    todo = [n for n in ops if n.target in table or not _is_pure(n.target)]
    known: Known = {}
    parts = [(n, graph) for n in todo if (graph := _once(known, n, table)) is not None]
    if len(parts) < len(todo):
        return False
    for node, graph in parts:
        _inline(node, graph)
    if parts:
        _name_results(program)
        program.graph_module.recompile()
    return True


def _name_results(program: ExportedProgram) -> None:
    """An op that was returned may have another name now."""
    out = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    for spec, given in zip(program.graph_signature.output_specs, out.args[0], strict=True):
        if isinstance(given, Node):
            spec.arg.name = given.name


def _writes_nowhere(op: Any) -> bool:
    return not op._schema.is_mutable if isinstance(op, torch._ops.OpOverload) else op is operator.getitem


def _is_pure(op: Any) -> bool:
    """It writes nowhere, and is none of those that torch always takes apart: views of views, norms that may train."""
    if not isinstance(op, torch._ops.OpOverload):
        return op is operator.getitem
    return _writes_nowhere(op) and (not _is_cia_op(op) or _is_preservable_cia_op(op))


def _has_sizes(node: Node) -> bool:
    """All in numbers: symbols are left to torch, which knows what it must assume of them."""
    if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
        return True  # an assertion
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return all(isinstance(v, torch.Tensor) and all(isinstance(d, int) for d in v.shape) for v in values)


def _once(known: Known, node: Node, table: Any) -> Graph | None:
    """A model repeats itself, block after block."""
    sources = list(dict.fromkeys(node.all_input_nodes))
    given = torch.fx.map_arg((node.args, node.kwargs), lambda n: (sources.index(n), n.meta["val"]))
    try:
        key = (node.target, key_of(given))
    except NoKey:
        return _traced(node, table)
    if key not in known:
        known[key] = _traced(node, table)
    return known[key]


def _traced(node: Node, table: Any) -> Graph | None:
    sources = list(dict.fromkeys(node.all_input_nodes))
    values = [n.meta["val"] for n in sources]
    target: Any = node.target

    def alone(*given: Any) -> Any:
        known = dict(zip(sources, given, strict=True))
        return target(*torch.fx.map_arg(node.args, known.get), **torch.fx.map_arg(node.kwargs, known.get))

    with torch.no_grad(), _mode([values, node.meta["val"]]):
        graph = make_fx(alone, decomposition_table=table)(*values).graph
    plain = all(n.op in ("placeholder", "call_function", "output") for n in graph.nodes)
    return graph if plain and all(_is_pure(n.target) for n in graph.nodes if n.op == "call_function") else None


def _mode(values: list[Any]) -> Any:
    return next(v.fake_mode for v in torch.utils._pytree.tree_leaves(values) if hasattr(v, "fake_mode"))


def _inline(node: Node, graph: Graph) -> None:
    """The parts in place of the op, with what is known of it: whose line it is, what it was marked as."""
    known = dict(
        zip((n for n in graph.nodes if n.op == "placeholder"), dict.fromkeys(node.all_input_nodes), strict=True)
    )
    kept = {k: v for k, v in node.meta.items() if k not in ("val", "tensor_meta")}
    with node.graph.inserting_before(node):
        for part in (n for n in graph.nodes if n.op == "call_function"):
            known[part] = node.graph.node_copy(part, known.__getitem__)
            known[part].meta = {**kept, "val": part.meta["val"]}
    _replace(
        node, torch.fx.map_arg(next(n for n in reversed(graph.nodes) if n.op == "output").args[0], known.__getitem__)
    )


def _replace(node: Node, result: Any) -> None:
    """With what the parts give; an op with several results is read item by item."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for item in list(node.users):
            item.replace_all_uses_with(result[item.args[1]])
            node.graph.erase_node(item)
    node.graph.erase_node(node)
