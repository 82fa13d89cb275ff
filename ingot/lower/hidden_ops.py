"""Hides barred ops from a partitioner: while it chooses, they call an op that no backend has.

The graph is otherwise unchanged. The op runs on the host, decomposed as any other host op, with its dequantizes and its
quantize; so delegates end and begin at integers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ingot.lower.partition_report import barred_as

torch.library.define("ingot::barred", "(Tensor x) -> Tensor")


def hiding(partitioner: Any, barred: Container[str]) -> Any:
    """A copy of an ExecuTorch partitioner that does not see the barred ops."""
    hides = copy.copy(partitioner)

    def partition(exported_program: Any) -> Any:
        with _hidden(exported_program.graph_module, barred):
            return partitioner.partition(exported_program)

    def ops_to_not_decompose(exported_program: Any) -> Any:
        ops, check = partitioner.ops_to_not_decompose(exported_program)
        return ops, _unless_barred(check, barred) if ops else check

    hides.partition, hides.ops_to_not_decompose = partition, ops_to_not_decompose
    return hides


def _unless_barred(check: Callable[[Node], bool] | None, barred: Container[str]) -> Callable[[Node], bool]:
    """A barred op is decomposed, since the host has kernels for the parts only."""
    return lambda node: not barred_as(node, barred) and (check is None or check(node))


@contextmanager
def _hidden(module: GraphModule, barred: Container[str]) -> Iterator[None]:
    from executorch.exir.dialects._ops import ops as exir_ops

    targets = {n: n.target for graph in _graphs(module) for n in graph.nodes if _is_barred(n, barred)}
    for node in targets:
        node.target = exir_ops.edge.ingot.barred.default
    try:
        yield
    finally:
        for node, target in targets.items():
            node.target = target


def _graphs(module: GraphModule) -> list[Graph]:
    """With those of branches."""
    return [m.graph for m in module.modules() if isinstance(m, GraphModule)]


def _is_barred(node: Node, barred: Container[str]) -> bool:
    return node.op == "call_function" and bool(barred_as(node, barred))
