"""XNNPACK's partitioner, the rewrites for it and hints for ops that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ingot.patches.xnnpack import skip_unmatched_patterns
from ingot.targets.base import Lowering, RewriteRule
from ingot.targets.xnnpack.rules import RULES

# Advice only, nothing depends on it: what a person would write instead.
GARBAGE = "it has no kernel for float activations with integer weights, and takes the codes for float numbers"
HINTS = {
    "weights:4w": GARBAGE,
    "weights:8w": GARBAGE,
    "pow": "for p = 2 write x * x; for positive x write torch.exp(p * torch.log(x))",
    "erf": "the tanh form of gelu has a kernel",
    "embedding": "keep it at the edge, or look vectors up outside and pass them in",
    "where": "multiply by a mask of zeros and ones, or add one of -1e9",
    "index": "an index that is a constant is folded into slices: make it one",
    "expand_copy": "let the next op broadcast instead",
    "split_with_sizes_copy": "give the sizes as numbers, so that it becomes slices",
}


class XnnpackLowering(Lowering):
    backend_id = "XnnpackBackend"
    resizes_at_runtime = True
    alignment = 64  # a cache line: weights are packed anew when they are loaded
    hints = HINTS

    def partitioners(self) -> list[Any]:
        return _partitioners()

    def rules(self) -> Sequence[RewriteRule]:
        return RULES

    def context(self) -> AbstractContextManager[Any]:
        return skip_unmatched_patterns()


def _partitioners() -> list[Any]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir.backend.utils import tag_constant_data

    class WithConstants(XnnpackPartitioner):
        """Constants that only a delegate reads belong in it; by default they are handed in at every call."""

        def partition(self, exported_program: Any) -> Any:
            result = super().partition(exported_program)
            tag_constant_data(exported_program)
            return result

    return [WithConstants()]
