"""Which ATen ops are left of an op in ExecuTorch's edge dialect, by its own decompositions."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import SymTypes

from ingot.core.fx import distinct_values, fake_mode_of, has_symbols, value_of
from ingot.core.shape_cache import ShapeCache

_known = ShapeCache[tuple[Any, ...]]()


def decomposed_ops(node: Node) -> tuple[Any, ...]:
    """The overloads that the op becomes, unless a partitioner asks to keep it whole."""
    return _known.get(decomposition_key(node), lambda: tuple(n.target for n in decomposed_nodes(node)))


def decomposition_key(node: Node) -> str:
    """Equal for ops that decompose alike: op, shapes, order in memory, types, arguments."""

    def shape(n: Node) -> Any:
        val = value_of(n)
        return (tuple(map(str, val.shape)), val.dtype, _order(val)) if isinstance(val, torch.Tensor) else str(val)

    return str((node.target, torch.fx.map_arg(node.args, shape), torch.fx.map_arg(node.kwargs, shape)))


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The strides where they are not those of a contiguous tensor. Of a part of another tensor they do not count."""
    return None if has_symbols(value.shape) or _is_part(value) or value.is_contiguous() else value.stride()


def _is_part(value: torch.Tensor) -> bool:
    """A slice: its elements are not side by side. What quantizes it writes them anew, in their order."""
    if has_symbols(value.shape):
        return False
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(value.stride(), value.shape, strict=True) if n != 1):
        if stride != expected:
            return True
        expected *= size
    return False


def _stored(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) and _is_part(value) else value


@cache
def _decompositions() -> dict[Any, Any]:
    from executorch.exir.tracer import _default_decomposition_table

    return dict(_default_decomposition_table())


def decomposed_nodes(node: Node) -> list[Node]:
    """The ops that it becomes, as nodes of a graph of their own."""
    try:
        graph = _decomposed(node)
    except Exception:  # one op alone may lack context (symbols, effects): assume that it is not decomposed
        return [node]
    calls = [n for n in graph.nodes if n.op == "call_function" and not isinstance(value_of(n), SymTypes)]
    parts = [n for n in calls if isinstance(n.target, torch._ops.OpOverload)]
    for part in parts:
        part.target = _functional(part.target)
    return parts


def functional_parts(node: Node) -> torch.fx.Graph | None:
    """The graph of the ops that it becomes; None where one of them writes into a value that is read elsewhere."""
    try:
        graph = _decomposed(node)
    except Exception:  # the op alone may lack context, as in decomposed_nodes: it stays whole
        return None
    graph.eliminate_dead_code()
    written = [n for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable]
    if any(n.all_input_nodes[0].op == "placeholder" or len(n.all_input_nodes[0].users) > 1 for n in written):
        return None
    for part in written:
        part.target = _functional(part.target)
    return graph


def _functional(op: Any) -> Any:
    """add_.Scalar -> add.Scalar: torch's composite ops write into their own results, the edge dialect never does."""
    if not op._schema.is_mutable:
        return op
    packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.split("::")[1].removesuffix("_"), None)
    return getattr(packet, op._overloadname, op)


def _decomposed(node: Node) -> torch.fx.Graph:
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors = list(dict.fromkeys(node.all_input_nodes))
    target: Any = node.target

    def alone(*values: Any) -> Any:
        given = dict(zip(tensors, values, strict=True))
        return target(*torch.fx.map_arg(node.args, given.get), **torch.fx.map_arg(node.kwargs, given.get))

    with fake_mode_of(node.graph.owning_module) or nullcontext():  # type: ignore[arg-type]
        stored = map(_stored, distinct_values(tensors))
        return make_fx(alone, decomposition_table=_decompositions())(*stored).graph
