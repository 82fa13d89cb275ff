"""Builds an ExportedProgram from a functional graph by lifting its constants to inputs, without tracing it again."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import InputKind, InputSpec, ModuleCallEntry, ModuleCallSignature, OutputKind
from torch.export.graph_signature import ExportGraphSignature, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ingot.capture.inputs import memory_format_of
from ingot.core.fx import has_symbols, output_nodes, value_of

_Inputs = tuple[torch.Tensor, ...]


def lift_constants(module: GraphModule, inputs: _Inputs) -> ExportedProgram | None:
    """The program with constants as inputs; None where torch must export it: state, symbolic shapes, unknown values."""
    if not all(map(_has_static_value, module.graph.nodes)) or not _returns_distinct_tensors(module):
        return None
    if not _have_planned_layouts(module, inputs):
        return None
    stored = dict(_constants(module))
    graph, named = _constants_as_placeholders(module, stored)
    kept = module.state_dict()
    ins = [_constant_spec(name, target, stored[target], target in kept) for target, name in named.items()]
    ins += [InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None) for n in _placeholders(graph)[len(named) :]]
    outs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in _outputs(graph)]
    return ExportedProgram(
        torch.nn.Module(), graph, ExportGraphSignature(ins, outs),
        {k: v for k, v in stored.items() if k in kept}, {}, [_module_call(inputs, len(outs))], (inputs, {}),
        {k: v for k, v in stored.items() if k not in kept}, verifiers=[_verifier()],
    )  # fmt: skip


def _verifier() -> Any:
    from torch._export.verifier import TrainingIRVerifier

    return TrainingIRVerifier


def _has_static_value(node: Node) -> bool:
    if node.op == "output":
        return True
    values = pytree.tree_leaves(value_of(node))
    sized = all(isinstance(v, torch._subclasses.FakeTensor) and not has_symbols(v.shape) for v in values)
    return sized and (node.op in ("placeholder", "get_attr") or _is_functional(node.target))


def _is_functional(op: Any) -> bool:
    return op is operator.getitem or (isinstance(op, torch._ops.OpOverload) and not op._schema.is_mutable)


def _returns_distinct_tensors(module: GraphModule) -> bool:
    """Every output is the result of an op, and no two are the same."""
    out = pytree.tree_leaves(next(n for n in reversed(module.graph.nodes) if n.op == "output").args[0])
    nodes = output_nodes(module)
    return len(out) == len(nodes) == len(set(nodes)) and all(n.op == "call_function" for n in nodes)


def _have_planned_layouts(module: GraphModule, inputs: _Inputs) -> bool:
    """Channels-last inputs of a graph that was captured with contiguous ones: torch must find the strides inside."""
    places = (n for n in module.graph.nodes if n.op == "placeholder")
    return all(memory_format_of(value_of(n)) is memory_format_of(x) for n, x in zip(places, inputs, strict=True))


def _constants(module: GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters before buffers, in the order of torch.export."""
    read = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    yield from ((name, tensor) for name, tensor in every if name in read)


def _constants_as_placeholders(module: GraphModule, stored: dict[str, torch.Tensor]) -> tuple[Graph, dict[str, str]]:
    """A copy of the graph with placeholders for constants, and their names."""
    graph, values, first = Graph(), dict[Node, Node](), dict[str, Node]()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            first.setdefault(str(node.target), node)
    places = dict[str, Node]()
    for target, tensor in stored.items():
        kind = "p" if isinstance(tensor, torch.nn.Parameter) else "b"
        made = places[target] = graph.placeholder(f"{kind}_{target.replace('.', '_')}")
        made.target, made.meta = made.name, dict(first[target].meta)  # graph names are lower case
    for node in module.graph.nodes:
        values[node] = places[str(node.target)] if node.op == "get_attr" else graph.node_copy(node, values.__getitem__)
    return graph, {target: n.name for target, n in places.items()}


def _constant_spec(name: str, target: str, tensor: torch.Tensor, is_kept: bool) -> InputSpec:
    if isinstance(tensor, torch.nn.Parameter):
        return InputSpec(InputKind.PARAMETER, TensorArgument(name), target)
    return InputSpec(InputKind.BUFFER, TensorArgument(name), target, is_kept)


def _placeholders(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


def _outputs(graph: Graph) -> list[Node]:
    return list(pytree.tree_leaves(next(n for n in reversed(graph.nodes) if n.op == "output").args[0]))


def _module_call(inputs: _Inputs, results: int) -> ModuleCallEntry:
    in_spec, out_spec = pytree.tree_structure((inputs, {})), pytree.tree_structure((0,) * results)
    return ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec))
