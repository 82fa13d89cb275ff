"""What Arm's own passes raise reaches the user as a refusal with the user's line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.support.requirements import need


def test_a_pass_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    need("ethos-u55-128")
    from executorch.backends.arm._passes.arm_pass_manager import ArmPassManager

    def stop(self: Any, module: Any) -> Any:
        try:
            raise ValueError("the order 7 is not supported\n\nWhile executing %linear : [num_users=1] = …")
        except ValueError as e:
            raise Exception("an error occurred after 40 passes") from e

    monkeypatch.setattr(ArmPassManager, "transform_for_annotation_pipeline", stop)
    batches = [(torch.randn(1, 8),)]
    program = ingot.capture(nn.Linear(8, 4).eval(), batches[0])
    with pytest.raises(ingot.LowerError, match=r"linear \(.*the order 7 is not supported ·"):
        ingot.plan(program, ingot.record(program, batches), "ethos-u55-128")
