"""Runs XNNPACK programs on the ExecuTorch runtime, in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ingot.runtime import worker
from ingot.runtime.segmented_run import run_segmented
from ingot.targets.base import Batch, Executor, Files, Runner
from ingot.targets.xnnpack.profile_events import event_handles


class XnnpackRunner(Runner):
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
        """Segment by segment if other backends have delegates in the program."""
        if extra:
            return run_segmented(pte, batches, extra, timeout)
        return worker.run_pte(pte, batches, timeout=timeout, fresh=fresh, method=method)

    def executed_on(self) -> str:
        return "ExecuTorch runtime, XNNPACK delegate, in a child process"

    def warm_up(self) -> None:
        worker.start_worker()

    def trace(self, pte: bytes, batch: Batch, runs: int) -> bytes | None:
        return worker.trace_pte(pte, batch, runs)

    def event_handles(self, payload: bytes, events: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        return event_handles(payload, events)
