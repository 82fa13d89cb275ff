"""The Vulkan target: GPUs through ExecuTorch's shaders, in float and with 4-bit weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from ingot.patches.vulkan import vulkan_lowering
from ingot.runtime.segmented_run import read_pte, run_segmented_file
from ingot.targets.base import (
    Batch,
    CostModel,
    Executor,
    Files,
    Format,
    Lowering,
    Numerics,
    RewriteRule,
    Runner,
    Setup,
    Target,
    WeightOnly,
)
from ingot.targets.requirements import EXECUTORCH
from ingot.targets.vulkan.interpreter import DelegateInterpreter
from ingot.targets.vulkan.kernels import VulkanKernels
from ingot.targets.vulkan.partitioner_query import ops_without_shader
from ingot.targets.vulkan.rules import RULES

BACKEND = "VulkanBackend"
EXECUTED_ON = "torch: the serialised Vulkan graph was decoded and interpreted op by op; no shader ran"
ONLY_INT4 = "only per-group 4-bit weights fuse into its linear; others would be stored as float"


class VulkanLowering(Lowering):
    backend_id = BACKEND
    resizes_at_runtime = True  # at every call, from the sizes of its inputs
    contiguous_only = True  # the runtime copies memory to the GPU as it is, and ignores dim orders
    hints = {"weights:8w": ONLY_INT4, "weights:8da8w": ONLY_INT4}  # noqa: RUF012

    def partitioners(self) -> list[Any]:
        return _partitioners()

    def rules(self) -> Sequence[RewriteRule]:
        return RULES

    def edge_passes(self) -> list[Any]:
        return [without_aliases]

    def context(self) -> AbstractContextManager[Any]:
        return vulkan_lowering()


def _partitioners() -> list[Any]:
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

    class WithoutState(VulkanPartitioner):  # type: ignore[misc]
        """Mutable buffers stay outside: the new value of one inside would be an output that the delegate call lacks."""

        def partition(self, exported_program: Any) -> Any:
            result = super().partition(exported_program)
            signature = exported_program.graph_signature
            written = set(signature.buffers_to_mutate.values())
            for node in exported_program.graph.nodes:
                if node.op == "placeholder" and signature.inputs_to_buffers.get(node.name) in written:
                    node.meta.pop("delegation_tag", None)
            return result

    return [WithoutState({}, operator_blocklist=ops_without_shader())]


def without_aliases(module: GraphModule) -> PassResult:
    """A value and its alias would be two outputs of a delegate, and one in its payload: the program would read memory
    that nothing writes. Decompositions leave them."""
    aliases = [n for n in module.graph.nodes if getattr(n.target, "__name__", "").startswith("aten.alias")]
    inner = [n for n in aliases if all(user.op != "output" for user in n.users)]  # the signature names outputs
    for node in inner:
        node.replace_all_uses_with(node.all_input_nodes[0])
        module.graph.erase_node(node)
    return PassResult(module, bool(inner))


class VulkanRunner(Runner):
    def run(
        self,
        pte: bytes,
        batches: Sequence[Batch],
        *,
        files: Mapping[str, Files],
        timeout: float,
        method: str = "forward",
        fresh: bool = True,
        extra: Mapping[str, Executor] | None = None,
    ) -> list[list[torch.Tensor]]:
        file = read_pte(pte, method)
        return run_segmented_file(
            file, batches, {BACKEND: DelegateInterpreter(file.named_data), **(extra or {})}, timeout
        )

    def executed_on(self) -> str:
        return EXECUTED_ON


VULKAN = Target(
    name="vulkan",
    description="GPUs through ExecuTorch's Vulkan shaders: float, and linears with 4-bit weights",
    numerics=Numerics(
        formats={},  # static int8 is not supported yet
        weight=Format("int8", -127, 127, symmetric=True),
        runs_float=True,
        bias="float",
    ),
    kernels=VulkanKernels(),
    cost=CostModel({"float": 1.0}),
    lowering=VulkanLowering(),
    runner=VulkanRunner(),
    setup=Setup(EXECUTORCH),
    weight_only=WeightOnly(("4w", "8da4w"), bits=(4,), fused_norm_gains=True),
)
