"""Run a graph on several batches at once, op by op. Values that depend on weights only are computed once, then freed.

The quantized graph of a decoder dequantizes every weight in each call. Batched execution does so once for all batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import get_attribute
from ingot.core.host_memory import LARGE_TENSOR_BYTES, ROWS_PER_CHUNK, evict_pages

Batch = tuple[torch.Tensor, ...]
DEQUANTIZE_PER_CHANNEL = "quantized_decomposed.dequantize_per_channel.default"
LINEAR = "aten.linear.default"
QUANTIZED_EMBEDDING = "quantized_decomposed.embedding_"


class _PerBatch(list[Any]):
    """One value per batch."""


@dataclass(frozen=True, eq=False)
class _QuantizedWeight:
    """A weight with many rows, dequantized chunk by chunk at its use."""

    codes: torch.Tensor
    scales: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        return torch.cat(list(self.dequantize_chunks()))

    def dequantize_chunks(self) -> Iterator[torch.Tensor]:
        each = zip(self.codes.split(ROWS_PER_CHUNK), self.scales.split(ROWS_PER_CHUNK), strict=True)
        return (codes.float().mul_(scales.view(-1, *[1] * (codes.dim() - 1))) for codes, scales in each)


def run_batched(module: GraphModule, batches: Sequence[Batch]) -> list[Any]:
    """The results of `module` for each batch. The graph must not contain mutating ops."""
    values, inputs, last = dict[Node, Any](), iter(zip(*batches, strict=True)), _last_uses(module.graph.nodes)
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "output":
                return [_arguments(node.args[0], values, i) for i in range(len(batches))]
            values[node] = _PerBatch(next(inputs)) if node.op == "placeholder" else _value(module, node, values)
            for dead in last.get(node, ()):
                if getattr(values.pop(dead), "nbytes", 0) >= LARGE_TENSOR_BYTES and dead.op == "get_attr":
                    evict_pages()  # the last use of this weight
    raise AssertionError("the graph has no output node")


def has_mutating_op(module: GraphModule) -> bool:
    """True if an op writes into an operand. Values shared by all batches would be overwritten."""
    ops = [n.target for n in module.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return any(op._schema.is_mutable for op in ops)


def _last_uses(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Maps each node to the values that it reads last."""
    last, dead_after = dict[Node, Node](), dict[Node, list[Node]]()
    for node in nodes:
        last.update(dict.fromkeys(node.all_input_nodes, node))
    for value, user in last.items():
        dead_after.setdefault(user, []).append(value)
    return dead_after


def _value(module: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
    if node.op == "get_attr":
        return get_attribute(module, str(node.target))
    batch_count = next((len(v) for n in node.all_input_nodes if isinstance(v := values[n], _PerBatch)), None)
    if batch_count is None:
        return _call(node, values, 0)
    if any(isinstance(values[n], _QuantizedWeight) for n in node.all_input_nodes):
        return _linear_by_chunks(node, values, batch_count)
    return _PerBatch(_call(node, values, i) for i in range(batch_count))


def _call(node: Node, values: dict[Node, Any], i: int) -> Any:
    args, kwargs = _arguments(node.args, values, i), _arguments(node.kwargs, values, i)
    if node.op == "call_module":
        return get_attribute(node.graph.owning_module, str(node.target))(*args, **kwargs)  # type: ignore[arg-type]
    if str(node.target) == DEQUANTIZE_PER_CHANNEL and args[3] == 0 and not kwargs and not args[2].any():
        # torch dequantizes via int64: a quarter of a gigabyte for an LM head.
        quantized = _QuantizedWeight(*args[:2])
        return quantized if len(args[0]) > ROWS_PER_CHUNK and _only_linear_weight(node) else quantized.dequantize()
    if str(node.target).startswith(QUANTIZED_EMBEDDING):
        args = _with_used_rows_only(*args)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _only_linear_weight(node: Node) -> bool:
    """Every user is a linear without bias that reads the node as its weight."""
    return all(str(u.target) == LINEAR and len(u.args) == 2 and not u.kwargs and u.args[1] is node for u in node.users)


def _linear_by_chunks(node: Node, values: dict[Node, Any], batch_count: int) -> _PerBatch:
    x, weight = (values[n] for n in node.all_input_nodes)
    chunks = [
        [torch.nn.functional.linear(x[i], part) for i in range(batch_count)] for part in weight.dequantize_chunks()
    ]
    return _PerBatch(torch.cat([part[i] for part in chunks], -1) for i in range(batch_count))


def _with_used_rows_only(codes: Any, scales: Any, zeros: Any, low: int, high: int, indices: Any) -> tuple[Any, ...]:
    """Arguments of an embedding lookup, reduced to the rows in `indices`. torch would dequantize the whole table."""
    rows = indices.flatten()
    used_zeros = None if zeros is None else zeros[rows]
    return codes[rows], scales[rows], used_zeros, low, high, torch.arange(len(rows)).view(indices.shape)


def _arguments(args: Any, values: dict[Node, Any], i: int) -> Any:
    """The arguments for batch `i`."""

    def at(node: Node) -> Any:
        value = values[node]
        if isinstance(value, _QuantizedWeight):
            return value.dequantize()
        return value[i] if isinstance(value, _PerBatch) else value

    return torch.fx.map_arg(args, at)
