"""Lowering for XNNPACK: partitioner, rewrites, and hints for ops without a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch.fx import GraphModule

from ingot.patches.xnnpack import xnnpack_pass_fixes
from ingot.targets.base import Lowering, RewriteRule
from ingot.targets.xnnpack.constant_audit import audit_delegates
from ingot.targets.xnnpack.constraints import restrict
from ingot.targets.xnnpack.rules import RULES

# Advice for the user; no decision depends on it.
WRONG_RESULTS = "it has no kernel for float activations with integer weights, and reads the integers as float"
HINTS = {
    "weights:4w": WRONG_RESULTS,
    "weights:8w": WRONG_RESULTS,
    "pow": "for p = 2 write x * x; for positive x write torch.exp(p * torch.log(x))",
    "erf": "the tanh form of gelu has a kernel",
    "embedding": "make it the first op, or pass the vectors as input",
    "where": "multiply by a mask of zeros and ones, or add one of -1e9",
    "index": "a constant index becomes slices",
    "expand_copy": "let the next op broadcast instead",
    "split_with_sizes_copy": "constant sizes become slices",
}


class XnnpackLowering(Lowering):
    backend_id = "XnnpackBackend"
    resizes_at_runtime = True
    absorbs_qdq = True
    alignment = 64  # a cache line is enough: weights are packed again when they are loaded
    hints = HINTS

    def partitioners(self) -> list[Any]:
        return _partitioners()

    def rules(self) -> Sequence[RewriteRule]:
        return RULES

    def context(self) -> AbstractContextManager[Any]:
        return xnnpack_pass_fixes()

    def audit(self, graph: GraphModule) -> tuple[str, ...]:
        return audit_delegates(graph, self.backend_id)


def _partitioners() -> list[Any]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir.backend.utils import tag_constant_data

    class WithConstants(XnnpackPartitioner):
        """Puts constants into the delegate that reads them; by default they are arguments of every call."""

        def partition(self, exported_program: Any) -> Any:
            result = super().partition(exported_program)
            tag_constant_data(exported_program)
            return result

    made = WithConstants()
    restrict(made)
    return [made]
