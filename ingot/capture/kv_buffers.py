"""KV buffers: the cache of a decoder as state of the program. The captured step gets rows of them and returns new ones.

The step is captured without state: it takes tokens, positions, columns and rows, and returns logits and new keys and
values. Here the state is added in eager torch, which is what an artefact is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

TOKENS, POSITIONS, COLUMNS, FIRST_ROWS = range(4)  # inputs of the captured step


@dataclass(frozen=True)
class KVBuffers:
    """Buffers of heads x rows x size each. The rows in use grow by `step`; all methods of the file are here too."""

    buffers: int
    heads: int
    rows: int
    size: int
    step: int
    metadata: Mapping[str, Any] = field(default_factory=dict)  # constant methods of the file

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"kv_cache_{i}" for i in range(self.buffers))

    @property
    def state(self) -> dict[str, Tensor]:
        return {name: torch.zeros(self.heads, self.rows, self.size) for name in self.names}

    def rows_in_use(self, position: int, many: int) -> int:
        return -(-(position + many) // self.step) * self.step

    def columns(self, rows: int) -> Tensor:
        return torch.arange(rows, dtype=torch.float32).view(1, 1, -1)


def with_kv_buffers(step: GraphModule, kv: KVBuffers) -> GraphModule:
    """The step as a module with state: tokens and positions in, logits out."""
    old, graph, seen = [*step.graph.nodes], Graph(), dict[Node, Node]()
    given = [n for n in old if n.op == "placeholder"]
    for node in given[:COLUMNS]:
        seen[node] = graph.node_copy(node)
    positions = seen[given[POSITIONS]]
    seen[given[COLUMNS]] = _called(graph, given[COLUMNS], _columns, positions, kv.step)
    buffers = [graph.create_node("get_attr", name) for name in kv.names]
    for i, node in enumerate(given[FIRST_ROWS:]):
        buffer, head = buffers[i // kv.heads], i % kv.heads
        seen[node] = _called(graph, node, _rows, buffer, head, positions, kv.step)
    for node in old:
        if node.op not in ("placeholder", "output"):
            seen[node] = graph.node_copy(node, lambda n: seen[n])
    logits, *new = (seen[n] for n in old[-1].args[0])
    for buffer, made in zip(buffers, new, strict=True):
        graph.call_function(torch.ops.aten.index_copy_.default, (buffer, 1, positions, made))
    graph.output((logits,))
    return _module(step, graph, kv)


def _called(graph: Graph, like: Node, function: Any, *args: Any) -> Node:
    made = graph.call_function(function, args)
    made.meta = dict(like.meta)
    return made


def _module(step: GraphModule, graph: Graph, kv: KVBuffers) -> GraphModule:
    root = torch.nn.Module()
    for name, value in step.__dict__["_modules"].items():
        root._modules[name] = value
    root._parameters.update(step._parameters)
    root._buffers.update(step._buffers)
    for name, value in vars(step).items():
        if isinstance(value, Tensor):
            setattr(root, name, value)
    for name, value in kv.state.items():
        root.register_buffer(name, value)
    return GraphModule(root, graph)


def _rows_in_use(positions: Tensor, step: int) -> int:
    return -(-(int(positions[0]) + len(positions)) // step) * step


def _columns(positions: Tensor, step: int) -> Tensor:
    return torch.arange(_rows_in_use(positions, step), dtype=torch.float32).view(1, 1, -1)


def _rows(buffer: Tensor, head: int, positions: Tensor, step: int) -> Tensor:
    return buffer[head : head + 1, : _rows_in_use(positions, step)].clone()
