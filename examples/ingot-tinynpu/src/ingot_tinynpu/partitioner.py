"""The partitioner: tags what the compiler matches, and reports why every other op stays on the host."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ingot.targets.base import report_host_op
from ingot_tinynpu.compiler import TinyNpuBackend, match
from ingot_tinynpu.ops import op_name, refusal


class TinyNpuPartitioner(Partitioner):
    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], None]:
        """Otherwise ExecuTorch turns a linear into permute and addmm."""
        return [torch.ops.aten.linear.default], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        matches = [m for n in calls if (m := match(n)) is not None]
        taken = {n for m in matches for n in (*m.reads, *m.ops, m.quantize)}
        for node in (n for n in calls if n not in taken):
            report_host_op(node, _why_on_host(node))
        return PartitionResult(exported_program, _tags(exported_program, taken))


def _why_on_host(node: Node) -> str:
    if "quantize_per" in op_name(node):
        return "it converts numbers for an op on the host"
    return refusal(node) or "it is planned in float, and TinyNPU computes in int8 only"


def _tags(program: ExportedProgram, taken: set[Node]) -> dict[str, DelegationSpec]:
    """As few delegates as possible; none may depend on itself through the host."""
    groups = CapabilityBasedPartitioner(program.graph_module, _Taken(taken), allows_single_node_partition=True)
    tags = {}
    for group in groups.propose_partitions():
        tags[tag := f"tinynpu{group.id}"] = DelegationSpec(TinyNpuBackend.__name__, [])
        for node in group.nodes:
            node.meta["delegation_tag"] = tag
    tag_constant_data(program)  # weights go into the delegate
    return tags


class _Taken(OperatorSupportBase):
    def __init__(self, nodes: set[Node]):
        self.nodes = nodes

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node in self.nodes
