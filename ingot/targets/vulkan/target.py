"""Vulkan: GPUs through ExecuTorch's shaders. Floating point, and weights of four bits that fuse into a linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ingot.patches.vulkan import quiet
from ingot.targets.base import Ability, Format, Prices, Target
from ingot.targets.xnnpack.target import XNNPACK

__all__ = ["VULKAN"]

BACKEND = "VulkanBackend"
EXECUTED_ON = "torch: the serialised Vulkan graph was decoded and interpreted op by op; no shader ran"
FUSED = "only groups of four-bit weights fuse into its linear; others would be written out as float numbers"
HINTS = {"weights:8w": FUSED, "weights:8da8w": FUSED}


def ability(node: Node) -> Ability:
    """Its partitioner decides when it is lowered, and what it leaves has its reason then."""
    return Ability(frozenset({"float"}), "what Vulkan takes is asked of its partitioner when the program is lowered")


def rules() -> Sequence[Any]:
    from ingot.rewrite.apply import for_vulkan

    return for_vulkan()


def partitioners() -> list[Any]:
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

    class WithoutState(VulkanPartitioner):  # type: ignore[misc]
        """State stays the program's: taken in, its new value is an output that the delegate's call has no place for."""

        def partition(self, exported_program: Any) -> Any:
            result = super().partition(exported_program)
            signature = exported_program.graph_signature
            written = set(signature.buffers_to_mutate.values())
            for node in exported_program.graph.nodes:
                if node.op == "placeholder" and signature.inputs_to_buffers.get(node.name) in written:
                    node.meta.pop("delegation_tag", None)
            return result

    return [WithoutState({})]


def run(
    pte: bytes, batches: Sequence[Any], *, timeout: float, beside: Any = None, method: str = "forward", **_: Any
) -> list[list[torch.Tensor]]:
    from ingot.runtime.segments import read, run_file
    from ingot.targets.vulkan.interpreter import Delegates

    file = read(pte, method)
    return run_file(file, batches, {BACKEND: Delegates(file.named_data), **(beside or {})}, timeout)


VULKAN = Target(
    name="vulkan",
    backend=BACKEND,
    description="GPUs through ExecuTorch's Vulkan shaders: float, and linears with 4-bit weights",
    requirements=XNNPACK.requirements,
    formats={},  # its static int8 was not tried here
    weight=Format("int8", -127, 127, symmetric=True),
    ability=ability,
    fuses=lambda producer, activation: False,
    rescales=lambda node: False,
    float_inside=True,
    float_bias=True,
    weight_axis=XNNPACK.weight_axis,
    rules=rules,
    partitioners=partitioners,
    run=run,
    executed_on=lambda: EXECUTED_ON,
    prices=Prices({"float": 1.0}),
    resizes=True,  # at every call, from its inputs on
    weight_schemes=("4w", "8da4w"),
    weight_bits=(4,),
    gains_in_norms=True,
    lowering=quiet,
    hints=HINTS,
)
