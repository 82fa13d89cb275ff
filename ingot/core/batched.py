"""A graph run on several batches at once, op after op: what depends on weights alone is computed once, and let go of.

A decoder's quantized graph dequantizes every weight each time it is called, the whole model for a single token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import attribute
from ingot.core.host_memory import LARGE, ROWS, evict_pages

Batch = tuple[torch.Tensor, ...]
PER_ROW = "quantized_decomposed.dequantize_per_channel.default"
LINEAR = "aten.linear.default"
LOOKED_UP = "quantized_decomposed.embedding_"


class _Each(list[Any]):
    """A value that differs from batch to batch."""


@dataclass(frozen=True, eq=False)
class _Stored:
    """A weight of many rows, as float numbers only where they are multiplied."""

    codes: torch.Tensor
    scales: torch.Tensor

    def whole(self) -> torch.Tensor:
        return torch.cat(list(self.parts()))

    def parts(self) -> Iterator[torch.Tensor]:
        each = zip(self.codes.split(ROWS), self.scales.split(ROWS), strict=True)
        return (codes.float().mul_(scales.view(-1, *[1] * (codes.dim() - 1))) for codes, scales in each)


def run_batched(module: GraphModule, batches: Sequence[Batch]) -> list[Any]:
    """What it returns for each batch; it must write nowhere."""
    values, inputs, last = dict[Node, Any](), iter(zip(*batches, strict=True)), _last_uses(module.graph.nodes)
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "output":
                return [_filled(node.args[0], values, i) for i in range(len(batches))]
            values[node] = _Each(next(inputs)) if node.op == "placeholder" else _value(module, node, values)
            for dead in last.get(node, ()):
                if getattr(values.pop(dead), "nbytes", 0) >= LARGE and dead.op == "get_attr":
                    evict_pages()  # a weight that nobody reads again
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
    if any(isinstance(values[n], _Stored) for n in node.all_input_nodes):
        return _multiplied(node, values, many)
    return _Each(_called(node, values, i) for i in range(many))


def _called(node: Node, values: dict[Node, Any], i: int) -> Any:
    args, kwargs = _filled(node.args, values, i), _filled(node.kwargs, values, i)
    if node.op == "call_module":
        return attribute(node.graph.owning_module, str(node.target))(*args, **kwargs)  # type: ignore[arg-type]
    if str(node.target) == PER_ROW and args[3] == 0 and not kwargs and not args[2].any():
        # torch goes through integers of eight bytes: for a head that is a quarter of a gigabyte.
        stored = _Stored(*args[:2])
        return stored if len(args[0]) > ROWS and _only_multiplied(node) else stored.whole()
    if str(node.target).startswith(LOOKED_UP):
        args = _of_these_rows(*args)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _only_multiplied(node: Node) -> bool:
    """By values, as the weight of a linear without a bias."""
    return all(str(u.target) == LINEAR and len(u.args) == 2 and not u.kwargs and u.args[1] is node for u in node.users)


def _multiplied(node: Node, values: dict[Node, Any], many: int) -> _Each:
    x, weight = (values[n] for n in node.all_input_nodes)
    made = [[torch.nn.functional.linear(x[i], part) for i in range(many)] for part in weight.parts()]
    return _Each(torch.cat([part[i] for part in made], -1) for i in range(many))


def _of_these_rows(codes: Any, scales: Any, zeros: Any, low: int, high: int, indices: Any) -> tuple[Any, ...]:
    """A lookup in a table of the rows that are asked for: torch dequantizes all that there are."""
    rows = indices.flatten()
    kept = None if zeros is None else zeros[rows]
    return codes[rows], scales[rows], kept, low, high, torch.arange(len(rows)).view(indices.shape)


def _filled(args: Any, values: dict[Node, Any], i: int) -> Any:
    """Arguments of one batch."""

    def at(node: Node) -> Any:
        value = values[node]
        if isinstance(value, _Stored):
            return value.whole()
        return value[i] if isinstance(value, _Each) else value

    return torch.fx.map_arg(args, at)
