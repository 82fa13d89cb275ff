"""What Vulkan's partitioner says about one op, asked before anything is lowered."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.fx import Graph, Node, map_arg

from ingot.core.fx import value_of
from ingot.core.shape_cache import ShapeCache
from ingot.patches.vulkan import vulkan_lowering
from ingot.targets.edge_ops import decomposed_nodes, decomposition_key
from ingot.targets.host_kernels import runs_on_host
from ingot.targets.vulkan.interpreter import registered_shaders

_known = ShapeCache[bool]()


def runs_with_vulkan(node: Node) -> bool:
    """In the delegate, or on the host by kernels of the runtime; each of the ops that the node becomes by itself."""
    return _known.get(decomposition_key(node), lambda: all(map(_edge_op_runs, decomposed_nodes(node))))


def _edge_op_runs(part: Node) -> bool:
    return runs_on_host(part, (part.target,)) or taken_by_vulkan(part)


def taken_by_vulkan(part: Node) -> bool:
    """Asked with a copy of the op, alone in a graph, under its name in the edge dialect."""
    try:
        with vulkan_lowering():  # logs refusals for the partition report only, which reads none here
            return bool(_support().is_node_supported({}, _alone(part)))
    except Exception:  # an op outside the edge dialect, or one on which the partitioner's own checks fail
        return False


@cache
def _support() -> Any:
    """With the limits and the blocklist that the partitioner is given."""
    from executorch.backends.vulkan import utils
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanSupportedOperators

    limits = utils.DEFAULT_TEXTURE_LIMITS, utils.DEFAULT_BUFFER_LIMIT
    return VulkanSupportedOperators(*limits, operator_blocklist=set(ops_without_shader()))


def ops_without_shader() -> list[Any]:
    """Ops that the partitioner takes and the runtime does not register: gt.Scalar, log10, logical_not …

    Others are replaced before they reach the runtime: views, and quantized ops by fused ones.
    """
    from executorch.backends.vulkan.op_registry import vulkan_supported_ops

    names = {op: getattr(op, "__name__", "") for op in vulkan_supported_ops}
    computing = [op for op, name in names.items() if name.startswith("aten.") and "_copy." not in name]
    return [op for op in computing if names[op] not in registered_shaders()]


def _alone(part: Node) -> Node:
    graph = Graph()
    known = {n: _placeholder(graph, n) for n in part.all_input_nodes}
    args, kwargs = map_arg((part.args, part.kwargs), known.__getitem__)
    asked = graph.call_function(_edge_op(part.target), args, kwargs)
    asked.meta["val"] = value_of(part)
    return asked


def _placeholder(graph: Graph, node: Node) -> Node:
    new = graph.placeholder(node.name)
    new.meta["val"] = value_of(node)
    return new


def _edge_op(op: Any) -> Any:
    from executorch.exir.dialects._ops import ops

    packet = getattr(getattr(ops.edge, op.namespace), op._schema.name.split("::")[1])
    return getattr(packet, op._overloadname)
