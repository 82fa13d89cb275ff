"""Kernels, lowering and runner that answer as those of another target do: a base for targets that wrap one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.targets.base import Ability, Batch, Estimate, Files, Kernels, Lowering, RewriteRule, Runner


@dataclass(frozen=True)
class ForwardingKernels(Kernels):
    """The kernels of `main`."""

    main: Kernels

    @property
    def cheap_to_query(self) -> bool:  # type: ignore[override]
        return self.main.cheap_to_query

    @property
    def integer_results(self) -> bool:  # type: ignore[override]
        return self.main.integer_results

    def ability(self, node: Node) -> Ability:
        return self.main.ability(node)

    def fuses(self, producer: Node, consumer: Node) -> bool:
        return self.main.fuses(producer, consumer)

    def requantizes(self, node: Node) -> bool:
        return self.main.requantizes(node)

    def weight_axis(self, node: Node) -> int | None:
        return self.main.weight_axis(node)

    def is_lut(self, node: Node) -> bool:
        return self.main.is_lut(node)

    def prefers_zero_point_zero(self, node: Node) -> bool | None:
        return self.main.prefers_zero_point_zero(node)


class ForwardingLowering(Lowering):
    """The lowering of `main`."""

    def __init__(self, main: Lowering):
        self.main = main
        self.backend_id, self.alignment, self.hints = main.backend_id, main.alignment, main.hints
        self.static_shapes, self.resizes_at_runtime = main.static_shapes, main.resizes_at_runtime
        self.extra_backends, self.barred = main.extra_backends, main.barred
        self.contiguous_only, self.absorbs_qdq = main.contiguous_only, main.absorbs_qdq

    def partitioners(self) -> list[Any]:
        return self.main.partitioners()

    def audit(self, graph: GraphModule) -> tuple[str, ...]:
        return self.main.audit(graph)

    def rules(self) -> Sequence[RewriteRule]:
        return self.main.rules()

    def edge_passes(self) -> list[Any]:
        return self.main.edge_passes()

    def context(self) -> AbstractContextManager[Any]:
        return self.main.context()

    def finish(self, graph: GraphModule) -> Mapping[str, Files]:
        return self.main.finish(graph)

    def owned_by_another(self, node: Node) -> bool:
        return self.main.owned_by_another(node)


@dataclass(frozen=True)
class ForwardingRunner(Runner):
    """The runner of `main`."""

    main: Runner

    @property
    def writes_scenarios(self) -> bool:  # type: ignore[override]
        return self.main.writes_scenarios

    def run(self, pte: bytes, batches: Sequence[Batch], **how: Any) -> list[list[torch.Tensor]]:
        return self.main.run(pte, batches, **how)

    def executed_on(self) -> str:
        return self.main.executed_on()

    def warm_up(self) -> None:
        self.main.warm_up()

    def trace(self, pte: bytes, batch: Batch, runs: int) -> bytes | None:
        return self.main.trace(pte, batch, runs)

    def event_handles(self, payload: bytes, events: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        return self.main.event_handles(payload, events)

    def estimate(self, files: Files) -> Estimate | None:
        return self.main.estimate(files)

    def write_scenario(self, folder: Path, pte: bytes, batches: Any, shaders: Any = None) -> None:
        self.main.write_scenario(folder, pte, batches, shaders)
