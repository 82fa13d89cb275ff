"""The target: the parts by which Ingot plans, lowers and runs. The entry point in pyproject.toml names `TARGET`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ingot.errors import InputError
from ingot.runtime.segmented_run import run_segmented
from ingot.targets.base import (
    Ability,
    Batch,
    CostModel,
    Executor,
    Format,
    Kernels,
    Lowering,
    Numerics,
    Runner,
    Setup,
    Target,
)
from ingot.targets.requirements import EXECUTORCH
from ingot_tinynpu.executor import run
from ingot_tinynpu.ops import fuses, refusal

BACKEND_ID = "TinyNpuBackend"
OPTIONS = {"accumulator_bits": "32 (default) or 16; a sum that does not fit wraps around"}


class TinyNpuKernels(Kernels):
    cheap_to_query = True

    def ability(self, node: Node) -> Ability:
        why = refusal(node)
        return Ability(frozenset(), why) if why else Ability(frozenset({"int8"}), "TinyNPU has a kernel for it")

    def fuses(self, producer: Node, activation: Node) -> bool:
        return fuses(producer, activation)


class TinyNpuLowering(Lowering):
    backend_id = BACKEND_ID
    static_shapes = True

    def partitioners(self) -> list[Any]:
        from ingot_tinynpu.partitioner import TinyNpuPartitioner  # not above: `ingot targets` imports no backend

        return [TinyNpuPartitioner()]


@dataclass(frozen=True)
class TinyNpuRunner(Runner):
    accumulator_bits: int

    def run(
        self,
        pte: bytes,
        batches: Sequence[Batch],
        *,
        timeout: float,
        method: str = "forward",
        extra: Mapping[str, Executor] | None = None,
        **_: Any,
    ) -> list[list[torch.Tensor]]:
        """Delegates on our executor, everything between them on the ExecuTorch runtime."""
        own = {BACKEND_ID: partial(run, accumulator_bits=self.accumulator_bits)}
        return run_segmented(pte, batches, {**own, **(extra or {})}, timeout, method)

    def executed_on(self) -> str:
        return "TinyNPU simulator in numpy, integer arithmetic"


def tinynpu(accumulator_bits: int = 32) -> Target:
    return Target(
        name="tinynpu",
        description="TinyNPU, an int8 accelerator simulated in numpy",
        numerics=Numerics(
            formats={"int8": Format("int8", -128, 127, symmetric=False)},
            weight=Format("int8", -127, 127, symmetric=True),
            runs_float=False,
            rounding="half_up",
        ),
        kernels=TinyNpuKernels(),
        cost=CostModel({"int8": 1.0, "float": 100.0}),
        lowering=TinyNpuLowering(),
        runner=TinyNpuRunner(accumulator_bits),
        setup=Setup(requirements=EXECUTORCH, options=OPTIONS, configure=_configured),
    )


def _configured(options: Mapping[str, Any]) -> Target:
    bits = options["accumulator_bits"]
    if bits not in (16, 32):
        raise InputError(f"tinynpu has no accumulator of {bits} bits", hint="accumulator_bits: 16 or 32")
    return tinynpu(bits)


TARGET = tinynpu()
