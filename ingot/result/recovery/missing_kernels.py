"""Which op a missing host kernel is about: ops that quantize an operand at run time belong to the op that reads it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from torch.fx import GraphModule, Node

from ingot.core.fx import untransformed_name
from ingot.result.recovery.failure import BackendFailure


def about_barred_ops(failure: BackendFailure, quantized: GraphModule, barred: Collection[str]) -> BackendFailure:
    """The same failure, in which `missing` names barred ops: a linear instead of the ops that quantize its input."""
    nodes = {untransformed_name(n.name): n for n in quantized.graph.nodes}
    own = (_barred_readers(nodes[v], barred) if v in nodes and v not in barred else [v] for v in failure.missing)
    return replace(failure, missing=tuple(dict.fromkeys(name for names in own for name in names)) or failure.missing)


def _barred_readers(node: Node, barred: Collection[str]) -> Iterator[str]:
    """The nearest ones, through ops that are not barred."""
    waiting, seen = list(node.users), set[Node]()
    while waiting:
        reader = waiting.pop()
        if reader in seen:
            continue
        seen.add(reader)
        if (name := untransformed_name(reader.name)) in barred:
            yield name
        else:
            waiting += reader.users
