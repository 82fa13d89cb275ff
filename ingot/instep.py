"""A graph run on several batches at once, op after op: what depends on weights alone is computed once, and let go of.

A decoder's quantized graph dequantizes every weight each time it is called, the whole model for a single token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.graph import attribute

Batch = tuple[torch.Tensor, ...]
PER_ROW = "quantized_decomposed.dequantize_per_channel.default"
LOOKED_UP = "quantized_decomposed.embedding_"


class _Each(list[Any]):
    """A value that differs from batch to batch."""


def in_step(module: GraphModule, batches: Sequence[Batch]) -> list[Any]:
    """What it returns for each batch; it must write nowhere."""
    values, inputs, last = dict[Node, Any](), iter(zip(*batches, strict=True)), _last_uses(module.graph.nodes)
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "output":
                return [_filled(node.args[0], values, i) for i in range(len(batches))]
            values[node] = _Each(next(inputs)) if node.op == "placeholder" else _value(module, node, values)
            for dead in last.get(node, ()):
                del values[dead]
    raise AssertionError("a graph ends with its output")


def writes(module: GraphModule) -> bool:
    """Into a value: what was computed once would be written to for every batch."""
    ops = [n.target for n in module.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return any(op._schema.is_mutable for op in ops)


def _last_uses(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """By the op that reads it last, what nobody needs any more."""
    last, found = dict[Node, Node](), dict[Node, list[Node]]()
    for node in nodes:
        last.update(dict.fromkeys(node.all_input_nodes, node))
    for read, by in last.items():
        found.setdefault(by, []).append(read)
    return found


def _value(module: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
    if node.op == "get_attr":
        return attribute(module, str(node.target))
    many = next((len(v) for n in node.all_input_nodes if isinstance(v := values[n], _Each)), None)
    if many is None:
        return _called(node, values, 0)
    return _Each(_called(node, values, i) for i in range(many))


def _called(node: Node, values: dict[Node, Any], i: int) -> Any:
    args, kwargs = _filled(node.args, values, i), _filled(node.kwargs, values, i)
    if node.op == "call_module":
        return attribute(node.graph.owning_module, str(node.target))(*args, **kwargs)  # type: ignore[arg-type]
    if str(node.target) == PER_ROW and args[3] == 0 and not kwargs and not args[2].any():
        # torch goes through integers of eight bytes: for a head that is a quarter of a gigabyte.
        return args[0].float().mul_(args[1].view(-1, *[1] * (args[0].dim() - 1)))
    if str(node.target).startswith(LOOKED_UP):
        args = _of_these_rows(*args)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _of_these_rows(codes: Any, scales: Any, zeros: Any, low: int, high: int, indices: Any) -> tuple[Any, ...]:
    """A lookup in a table of the rows that are asked for: torch dequantizes all that there are."""
    rows = indices.flatten()
    kept = None if zeros is None else zeros[rows]
    return codes[rows], scales[rows], kept, low, high, torch.arange(len(rows)).view(indices.shape)


def _filled(args: Any, values: dict[Node, Any], i: int) -> Any:
    """Arguments of one batch."""

    def at(node: Node) -> Any:
        value = values[node]
        return value[i] if isinstance(value, _Each) else value

    return torch.fx.map_arg(args, at)
