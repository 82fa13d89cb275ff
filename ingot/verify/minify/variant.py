"""A smaller variant of a failing model: some of its ops, on the inputs that they have in the full program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.export import Program, restore_state
from ingot.core.fx import calls, value_of
from ingot.core.subgraph import extract_subgraph, subgraph_inputs

Batch = tuple[Any, ...]
Unit = tuple[Node, ...]  # an op, with the getitems of its result


@dataclass(frozen=True, eq=False)
class Variant:
    """Everything that a reproducer file would contain."""

    module: GraphModule
    batches: tuple[Batch, ...]
    target: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    random: frozenset[str] = frozenset()  # constants that are random numbers from a seed; INPUTS: the batches too
    standard: bool = False  # random numbers have mean 0 and standard deviation 1, not those of the model

    @property
    def ops(self) -> int:
        return len(units_of(self.module))


INPUTS = "batches"


def units_of(module: GraphModule) -> list[Unit]:
    """All ops in graph order, without writes into buffers: a reproducer has no state."""
    ops = [n for n in calls(module) if not _is_getitem(n) and n.target is not torch.ops.aten.copy_.default]
    return [(n, *(u for u in n.users if _is_getitem(u))) for n in ops]


def _is_getitem(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def variant_of(program: Program, units: Sequence[Unit], full: Variant) -> Variant:
    """Only these ops: values from other ops become inputs, values that none of them reads become outputs."""
    kept = {n for unit in units for n in unit}
    boundary = {n for k in kept for n in k.all_input_nodes if n not in kept and n.op != "get_attr"}
    wanted = [n for unit in units for n in unit if isinstance(value_of(n), torch.Tensor) and not kept & n.users.keys()]
    part = extract_subgraph(program.module, boundary, wanted)
    reads = subgraph_inputs(program.module, part)
    batches = _inline_numbers(part, [values_of(program, reads, batch) for batch in full.batches])
    name_inputs(part)
    return Variant(part, batches, full.target, full.recipe)


def name_inputs(part: GraphModule) -> None:
    """Name the inputs x, or x1, x2, …"""
    places = [n for n in part.graph.nodes if n.op == "placeholder"]
    for i, node in enumerate(places):
        node.name = node.target = f"x{i + 1}" if len(places) > 1 else "x"
    part.recompile()


def values_of(program: Program, reads: Sequence[Node], batch: Batch) -> Batch:
    """The values of these nodes in a run of the program."""
    found: dict[Node, Any] = {}

    class Keep(Interpreter):
        def run_node(self, n: Node) -> Any:
            out = super().run_node(n)
            if n in wanted:
                found[n] = out.detach().clone() if isinstance(out, torch.Tensor) else out
            return out

    wanted = set(reads)
    restore_state(program.module, program.state)
    with torch.no_grad():
        Keep(program.module).run(*batch)
    restore_state(program.module, program.state)
    return tuple(found[n] for n in reads)


def _inline_numbers(part: GraphModule, batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Replace inputs that are numbers (sizes) by their values in the graph; return the batches without them."""
    places = [n for n in part.graph.nodes if n.op == "placeholder"]
    numbers = {n: v for n, v in zip(places, batches[0], strict=True) if not isinstance(v, torch.Tensor)}
    for node in part.graph.nodes:
        node.args = torch.fx.map_arg(node.args, lambda n: numbers.get(n, n))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: numbers.get(n, n))
    for node in numbers:
        part.graph.erase_node(node)
    part.recompile()
    return tuple(tuple(v for n, v in zip(places, b, strict=True) if n not in numbers) for b in batches)
