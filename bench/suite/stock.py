"""The suite's own flow for a target, as the suite itself runs and judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ingot.patches.speed_contexts import fast_convert, fast_lowering
from ingot.patches.version_gate import patched
from ingot.targets.arm.requirements import find_converter

FLOWS = {"xnnpack": "xnnpack_static_int8_per_channel", "ethos-u55-128": "arm_ethos_u55", "vgf": "arm_vgf_int"}
# From best to worst, in the words of the suite's TestResult.
RESULTS = (
    "SUCCESS", "SUCCESS_UNDELEGATED", "SKIPPED", "QUANTIZE_FAIL", "LOWER_FAIL", "PTE_LOAD_FAIL", "PTE_RUN_FAIL",
    "OUTPUT_MISMATCH_FAIL", "UNKNOWN_FAIL", "crashed",
)  # fmt: skip


class StockRunner:
    """The suite's runner, without the exception after the first model that fails."""

    def __init__(self, target: str, name: str) -> None:
        from executorch.backends.test.suite.flow import all_flows

        self._flow, self.name = all_flows()[FLOWS[target]], name
        self.rows: list[dict[str, Any]] = []

    def lower_and_run_model(
        self, model: torch.nn.Module, inputs: Any, generate_random_test_inputs: bool = True, dynamic_shapes: Any = None
    ) -> None:
        from executorch.backends.test.suite.runner import run_test

        with hastened():
            found = run_test(
                model, inputs, self._flow, self.name, self.name, len(self.rows), None,
                generate_random_test_inputs=generate_random_test_inputs, dynamic_shapes=dynamic_shapes,
            )  # fmt: skip
        why = " ".join(str(found.error).split())[:300] if found.error else ""
        self.rows.append({"result": found.result.name, "why": why})


@contextmanager
def hastened() -> Iterator[None]:
    """Without work that changes no result: stock's results are wanted here, not its times."""
    from executorch.backends.test.harness import Tester
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils as annotators

    find_converter()  # the suite looks for it on the PATH only
    with (
        fast_convert(),
        patch.object(Tester, "to_edge_transform_and_lower", _fast(Tester.to_edge_transform_and_lower)),
        patch.object(annotators, "_do_annotate_conv_bn", _if_batch_norm(annotators._do_annotate_conv_bn)),
    ):
        yield


def _fast(lower: Callable[..., Any]) -> Callable[..., Any]:
    def lower_fast(*args: Any, **kwargs: Any) -> Any:
        with fast_lowering(), patched("xnnpack"):
            return lower(*args, **kwargs)

    return lower_fast


def _if_batch_norm(annotate: Callable[..., Any]) -> Callable[..., Any]:
    """It exports dozens of patterns, which match nothing in a graph without a batch norm."""

    def annotate_if(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        has_norm = any("batch_norm" in str(node.target) for node in module.graph.nodes)
        return annotate(module, *args, **kwargs) if has_norm else []

    return annotate_if
