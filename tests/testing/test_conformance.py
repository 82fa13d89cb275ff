"""Every target conforms; a target that is wrong fails in the category of its fault."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx import Node

import ingot
from ingot.targets import registry
from ingot.targets.base import Ability, Batch, Executor, Runner, Target
from ingot.targets.forwarding import ForwardingKernels, ForwardingRunner
from ingot.testing import conformance
from tests.support.requirements import need

SOURCE = Path(__file__).parents[2] / "examples/ingot-tinynpu/src"


@pytest.mark.parametrize("target", ["xnnpack", "ethos-u55-128"])
def test_every_target_conforms(target: str) -> None:
    report = conformance(need(target), quick=True)
    assert report.passed, str(report)
    assert {o.verdict for o in report.outcomes if o.category == "numerics"} >= {"passed"}


# ---- wrong targets ----


@pytest.fixture
def tinynpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example package, whose executor is Python."""
    monkeypatch.syspath_prepend(str(SOURCE))
    import ingot_tinynpu.target as module

    before = dict(registry._registered)
    yield module
    registry._registered.clear()
    registry._registered.update(before)
    registry._composed.cache_clear()
    for name in [n for n in sys.modules if n.startswith("ingot_tinynpu")]:
        del sys.modules[name]


def registered(target: Target) -> str:
    registry.register_target(replace(target, name="wrong-npu"))
    return "wrong-npu"


def test_the_example_conforms(tinynpu: Any) -> None:
    report = conformance(registered(tinynpu.TARGET))
    assert report.passed, str(report)
    assert sum(o.verdict == "passed" for o in report.outcomes) >= 8


@dataclass(frozen=True)
class WrongRunner(Runner):
    """TinyNPU with another executor."""

    executor: Executor

    def run(
        self, pte: bytes, batches: Sequence[Batch], *, timeout: float, method: str = "forward",
        extra: Mapping[str, Executor] | None = None, **_: Any,
    ) -> list[list[torch.Tensor]]:  # fmt: skip
        from ingot.runtime.segmented_run import run_segmented

        return run_segmented(pte, batches, {"TinyNpuBackend": self.executor, **(extra or {})}, timeout, method)

    def executed_on(self) -> str:
        return "a wrong simulator"


def with_rows(module: Any, change: Callable[[dict[str, Any]], None]) -> Target:
    """Each instruction is changed before it is executed."""
    import ingot_tinynpu.executor as executor

    def run(payload: bytes, batches: Any, outputs: int) -> Any:
        real = executor.json.loads

        class Json:
            @staticmethod
            def loads(text: str) -> Any:
                program = real(text)
                for row in program["instructions"]:
                    change(row)
                return program

        executor.json = Json  # type: ignore[attr-defined]
        try:
            return executor.run(payload, batches, outputs)
        finally:
            import json

            executor.json = json  # type: ignore[attr-defined]

    return replace(module.TARGET, runner=WrongRunner(run))


def no_relu(row: dict[str, Any]) -> None:
    row["clamp"][0] = -128


def one_multiplier(row: dict[str, Any]) -> None:
    if row["unit"] == "alu" and len(row["reads"]) == 2:
        row["multipliers"][1] = row["multipliers"][0]


def shuffled_reshape(module: Any) -> Target:
    """A tensor that only changes its shape comes out in another order."""
    import ingot_tinynpu.executor as executor

    real = executor._alu

    def alu(row: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
        made = real(row, operands)
        if len(made) == 1 and list(made[0].shape) != row["shape"]:
            return [np.roll(made[0], 1)]
        return made

    def run(payload: bytes, batches: Any, outputs: int) -> Any:
        executor._alu = alu
        try:
            return executor.run(payload, batches, outputs)
        finally:
            executor._alu = real

    return replace(module.TARGET, runner=WrongRunner(run))


@dataclass(frozen=True)
class FloatOutputs(ForwardingRunner):
    """Integers come back as floats."""

    def run(self, pte: bytes, batches: Sequence[Batch], **how: Any) -> list[list[torch.Tensor]]:
        return [[t.float() for t in outputs] for outputs in self.main.run(pte, batches, **how)]


@dataclass(frozen=True)
class ReferenceRunner(ForwardingRunner):
    """It never looks at the file: it remembers what the last good one gave."""

    kept: dict[str, Any] = field(default_factory=dict)

    def run(self, pte: bytes, batches: Sequence[Batch], **how: Any) -> list[list[torch.Tensor]]:
        key = str([tuple(t.flatten()[:4].tolist()) for b in batches for t in b])
        return self.kept.setdefault(key, self.main.run(pte, batches, **how))


class Boasting(ForwardingKernels):
    """It promises a sigmoid that its partitioner refuses."""

    def ability(self, node: Node) -> Ability:
        if "sigmoid" in str(node.target):
            return Ability(frozenset({"int8"}), "we will have one soon")
        return self.main.ability(node)


WRONG: dict[str, Callable[[Any], Target]] = {
    "numerics": lambda m: m.tinynpu(16),
    "fusions": lambda m: with_rows(m, no_relu),
    "moves": shuffled_reshape,
    "joins": lambda m: with_rows(m, one_multiplier),
    "I/O types": lambda m: replace(m.TARGET, runner=FloatOutputs(m.TARGET.runner)),
    "refusals": lambda m: replace(m.TARGET, kernels=Boasting(m.TARGET.kernels)),
    "verification": lambda m: replace(m.TARGET, runner=ReferenceRunner(m.TARGET.runner)),
}


@pytest.mark.parametrize("category", WRONG)
def test_a_wrong_target_fails_in_the_category_of_its_fault(tinynpu: Any, category: str) -> None:
    report = conformance(registered(WRONG[category](tinynpu)), quick=True, categories=[category])
    assert report.failed_categories == {category}, str(report)
    assert "does not conform" in str(report)


def test_a_runner_that_does_not_execute_the_file_is_found_out(tinynpu: Any) -> None:
    report = conformance(registered(WRONG["verification"](tinynpu)), categories=["verification"])
    assert "is the file executed?" in str(report)


def test_an_unknown_category_is_refused() -> None:
    with pytest.raises(ingot.InputError, match="did you mean 'moves'"):
        conformance("xnnpack", categories=["move"])
