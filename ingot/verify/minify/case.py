"""On the way to a reproducer: some ops of the program, fed with the values that the whole program gives them."""

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
Unit = tuple[Node, ...]  # an op, with what is taken from its tuple


@dataclass(frozen=True, eq=False)
class Case:
    """One trial: everything that a file of it would hold."""

    module: GraphModule
    batches: tuple[Batch, ...]
    target: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    drawn: frozenset[str] = frozenset()  # constants that are drawn from a seed; INPUTS among them: the batches too
    standard: bool = False  # what is drawn has mean 0 and spread 1, not the model's own

    @property
    def ops(self) -> int:
        return len(units_of(self.module))


INPUTS = "batches"


def units_of(module: GraphModule) -> list[Unit]:
    """In graph order. A write into a buffer is none: a reproducer keeps no state."""
    ops = [n for n in calls(module) if not _is_part(n) and n.target is not torch.ops.aten.copy_.default]
    return [(n, *(u for u in n.users if _is_part(u))) for n in ops]


def _is_part(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def case_of(program: Program, units: Sequence[Unit], whole: Case) -> Case:
    """These ops alone: what they read of others becomes an input, what nobody among them reads an output."""
    kept = {n for unit in units for n in unit}
    given = {n for k in kept for n in k.all_input_nodes if n not in kept and n.op != "get_attr"}
    wanted = [n for unit in units for n in unit if isinstance(value_of(n), torch.Tensor) and not kept & n.users.keys()]
    part = extract_subgraph(program.module, given, wanted)
    reads = subgraph_inputs(program.module, part)
    batches = _without_numbers(part, [_values(program, reads, batch) for batch in whole.batches])
    name_inputs(part)
    return Case(part, batches, whole.target, whole.recipe)


def name_inputs(part: GraphModule) -> None:
    """As a person would: x, or x1, x2."""
    places = [n for n in part.graph.nodes if n.op == "placeholder"]
    for i, node in enumerate(places):
        node.name = node.target = f"x{i + 1}" if len(places) > 1 else "x"
    part.recompile()


def _values(program: Program, reads: Sequence[Node], batch: Batch) -> Batch:
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


def _without_numbers(part: GraphModule, batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """A size that is read is written into the graph as the number that it was."""
    places = [n for n in part.graph.nodes if n.op == "placeholder"]
    numbers = {n: v for n, v in zip(places, batches[0], strict=True) if not isinstance(v, torch.Tensor)}
    for node in part.graph.nodes:
        node.args = torch.fx.map_arg(node.args, lambda n: numbers.get(n, n))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: numbers.get(n, n))
    for node in numbers:
        part.graph.erase_node(node)
    part.recompile()
    return tuple(tuple(v for n, v in zip(places, b, strict=True) if n not in numbers) for b in batches)
