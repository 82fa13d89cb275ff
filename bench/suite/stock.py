"""The suite's own flow for a target, as the suite itself runs and judges it."""

from __future__ import annotations

from typing import Any

import torch

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

        found = run_test(
            model, inputs, self._flow, self.name, self.name, len(self.rows), None,
            generate_random_test_inputs=generate_random_test_inputs, dynamic_shapes=dynamic_shapes,
        )  # fmt: skip
        why = " ".join(str(found.error).split())[:300] if found.error else ""
        self.rows.append({"result": found.result.name, "why": why})
