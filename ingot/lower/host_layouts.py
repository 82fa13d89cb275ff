"""op(x, …) -> channels_last(op(contiguous(x), …)) for host ops and some delegates beside channels-last values.

Host kernels refuse tensors of different memory formats, and some compute along the wrong axis. Elementwise ops on
tensors of one shape and one format stay as they are: no position matters to them. Delegates of some backends (Vulkan)
take and give contiguous memory only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ingot.capture.inputs import memory_format_of
from ingot.core.fx import inherited_meta, value_of


def make_host_ops_contiguous(program: ExportedProgram, backends: Collection[str] = ()) -> None:
    """After partitioning: delegates keep the formats that they were compiled for, except those of `backends`."""
    restored: dict[Node, Node] = {}  # by copy in channels-last format: the contiguous result
    delegates = list(_contiguous_delegates(program, backends))
    for node in [n for n in program.graph.nodes if n in delegates or _needs_contiguous(n)]:
        for operand in node.all_input_nodes:
            if _is_permuted(value_of(operand)):
                node.replace_input_with(operand, restored.get(operand) or _contiguous(operand, node))
        for result in _results(node):
            _restore_format(program, result, restored)
        node.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, _plain, value_of(node))
    for copy in reversed(restored):
        if not copy.users:
            program.graph.erase_node(copy)
    program.graph_module.recompile()


def _needs_contiguous(node: Node) -> bool:
    op: Any = getattr(node.target, "_op", node.target)  # of an edge op: the ATen op
    if not isinstance(op, torch._ops.OpOverload) or op.namespace == "dim_order_ops":
        return False
    tensors = [t for n in (*node.all_input_nodes, *_results(node)) if isinstance(t := value_of(n), torch.Tensor)]
    return any(map(_is_permuted, tensors)) and not (_is_elementwise(op) and _are_channels_last(tensors))


def _contiguous_delegates(program: ExportedProgram, backends: Collection[str]) -> Iterator[Node]:
    """Calls of delegates of `backends` beside permuted values. Their results are declared contiguous."""
    for node in program.graph.nodes if backends else ():
        if "call_delegate" in str(node.target):
            lowered: Any = getattr(program.graph_module, node.args[0].target)
            beside = (*node.all_input_nodes, *_results(node))
            if lowered.backend_id in backends and any(_is_permuted(value_of(n)) for n in beside):
                _declare_contiguous(lowered.original_module.graph)
                yield node


def _declare_contiguous(graph: Graph) -> None:
    """Passes that trace the program again take what a delegate returns from its graph."""
    last = next(n for n in reversed(graph.nodes) if n.op == "output")
    for node in last.all_input_nodes:
        node.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, _plain, value_of(node))


def _is_elementwise(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags or op.namespace == "quantized_decomposed"


def _are_channels_last(tensors: list[torch.Tensor]) -> bool:
    alike = len({t.shape for t in tensors}) == 1
    return alike and all(memory_format_of(t) is torch.channels_last for t in tensors)


def _is_permuted(val: object) -> bool:
    return isinstance(val, torch.Tensor) and not val.is_contiguous()


def _results(node: Node) -> list[Node]:
    """The op itself, or what is taken from its several results."""
    if isinstance(value_of(node), torch.Tensor):
        return [node]
    return [u for u in node.users if getattr(u.target, "__name__", "") == "getitem"]


def _plain(val: torch.Tensor) -> torch.Tensor:
    return val.contiguous()


def _contiguous(value: Node, reader: Node) -> Node:
    with reader.graph.inserting_before(reader):
        return _copy(value, torch.contiguous_format)


def _restore_format(program: ExportedProgram, result: Node, restored: dict[Node, Node]) -> None:
    """Readers of a channels-last result are compiled for it; any other permuted format means contiguous to them."""
    val = value_of(result)
    result.meta["val"] = _plain(val)
    if memory_format_of(val) is not torch.channels_last:
        return
    readers = list(result.users)
    with result.graph.inserting_after(result):
        copy = _copy(result, torch.channels_last)
    for reader in readers:
        reader.replace_input_with(result, copy)
    program.graph_signature.replace_all_uses(result.name, copy.name)
    restored[copy] = result


def _copy(value: Node, memory_format: torch.memory_format) -> Node:
    from executorch.exir.dialects._ops import ops

    val = value_of(value).contiguous(memory_format=memory_format)
    clone: Any = ops.edge.dim_order_ops._clone_dim_order.default
    made = value.graph.call_function(clone, (value,), {"dim_order": list(val.dim_order())})
    made.meta = {**inherited_meta(value), "val": val}
    return made
