"""Audit of a delegate: kernels that read nothing but constants, and so compute the same numbers at every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from ingot.core.fx import source_of
from ingot.targets.xnnpack.payload import PayloadGraph, PayloadNode, decoded


@dataclass(frozen=True)
class ConstantKernel:
    """A kernel whose result is the same at every run, and the size of the constants that it reads."""

    node: PayloadNode
    elements: int


def constant_kernels(graph: PayloadGraph) -> Iterator[ConstantKernel]:
    """In order: what reads only constants makes a constant, which the next kernel may read."""
    known = dict(graph.constants)
    for node in graph.nodes:
        if node.reads and all(i in known for i in node.reads):
            size = sum(known[i] for i in node.reads)
            known |= dict.fromkeys(node.writes, size)
            yield ConstantKernel(node, size)


def audit_delegates(graph: GraphModule, backend_id: str) -> tuple[str, ...]:
    """A note for each kind of kernel in the delegates that reads only constants, with the user's ops."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and "call_delegate" in str(n.target)]
    lowered = [getattr(graph, str(n.args[0].target)) for n in calls]
    return tuple(note for each in lowered if each.backend_id == backend_id for note in _notes(each))


def _notes(lowered: Any) -> Iterator[str]:
    found = list(constant_kernels(decoded(lowered.processed_bytes)))
    by_handle = {n.meta.get("debug_handle"): n for n in lowered.original_module.graph.nodes if n.op == "call_function"}
    for kind, count in Counter(f.node.kind for f in found).items():
        same = [f for f in found if f.node.kind == kind]
        where = dict.fromkeys(_place(by_handle.get(f.node.debug_handle)) for f in same)
        yield (
            f"computed at every run, though it reads only constants: {count} {kind} "
            f"({sum(f.elements for f in same)} numbers), of {', '.join(list(where)[:3])}"
        )


def _place(node: Node | None) -> str:
    return "an unknown op" if node is None else f"{node.name} ({source_of(node)})"
