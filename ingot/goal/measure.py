"""The value of each goal's metric: of the float model, of a plan in simulated quantization, of an artefact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from ingot.capture.export import Program
from ingot.core.goal_records import GoalValue
from ingot.errors import InputError
from ingot.goal.goal import Goal, metric_value
from ingot.goal.metrics import Metric
from ingot.plan.plan_data import Plan
from ingot.plan.simulated_quantization import SampleBatch, simulate_plan
from ingot.verify.check import Evidence, run_artefact, run_graph

Run = Callable[[Sequence[SampleBatch]], Iterable[list[Tensor]]]  # flat outputs, batch by batch


@dataclass(frozen=True)
class _Measured:
    """A goal with its data, and what the float model makes of it."""

    metric: Metric
    batches: list[SampleBatch]
    expected: list[Any]  # labels, or the float model's outputs
    float_value: float
    bar: float


@dataclass(frozen=True)
class GoalMeasure:
    """Measures all goals of a cast. Their data is read and run in float once."""

    goals: tuple[_Measured, ...]
    restore: Callable[[list[Tensor]], Any]  # flat outputs as the model returns them

    @classmethod
    def of(cls, program: Program, goals: Sequence[Goal]) -> GoalMeasure:
        restore = _output_structure(program)
        return cls(tuple(_measured(program, goal, restore) for goal in goals), restore)

    def values(self, run: Run) -> tuple[GoalValue, ...]:
        return tuple(
            GoalValue(g.metric.name, g.float_value, g.bar, g.metric.higher_is_better, self._value(g, run))
            for g in self.goals
        )

    def _value(self, goal: _Measured, run: Run) -> float:
        outputs = map(self.restore, run(goal.batches))
        return metric_value(goal.metric, zip(outputs, goal.expected, strict=True))


def _measured(program: Program, goal: Goal, restore: Callable[[list[Tensor]], Any]) -> _Measured:
    metric = goal.resolved_metric()
    batches, labels = goal.samples()
    flat = [program.flatten(b) for b in batches]
    outputs = [restore(o) for o in run_graph(program.reference, flat, program.state)]
    expected = outputs if metric.compares_with_float else labels
    value = metric_value(metric, iter(zip(outputs, expected, strict=True)))
    found = _Measured(metric, flat, expected, value, _bar(goal, metric, value))
    _refuse_beyond_float(found)
    return found


def _bar(goal: Goal, metric: Metric, float_value: float) -> float:
    if goal.drop is None:
        assert goal.bar is not None
        return float(goal.bar)
    return float_value - goal.drop if metric.higher_is_better else float_value + goal.drop


def _refuse_beyond_float(goal: _Measured) -> None:
    of_float = GoalValue(goal.metric.name, goal.float_value, goal.bar, goal.metric.higher_is_better, goal.float_value)
    if not of_float.met:
        why, hint = f"the float model itself has {goal.float_value:.6g}", "lower the bar, or give a drop"
        raise InputError(f"{goal.metric.name} cannot reach {goal.bar:.6g}", why=why, hint=hint)


def _output_structure(program: Program) -> Callable[[list[Tensor]], Any]:
    """From the flat tensors to what the model returns: dicts and tuples, with its constants and Nones."""
    out = next(n for n in reversed(program.reference.graph.nodes) if n.op == "output")
    leaves = list(out.args[0])
    spec = program.exported.call_spec.out_spec if program.exported is not None else None

    def restore(tensors: list[Tensor]) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, Node) else leaf for leaf in leaves]
        if spec is not None and spec.num_leaves == len(filled):
            return pytree.tree_unflatten(filled, spec)
        return filled[0] if len(filled) == 1 else tuple(filled)

    return restore


@dataclass(frozen=True)
class SimulatedRun:
    """A plan on batches, in simulated quantization. Weights are quantized once for all plans that agree on them."""

    program: Program  # rewritten for the target
    plan: Plan
    constants: dict[Any, Tensor] = field(default_factory=dict)

    def __call__(self, batches: Sequence[SampleBatch]) -> Iterator[list[Tensor]]:
        with torch.no_grad():
            for batch in batches:
                yield simulate_plan(self.program.module, self.plan, batch, self.constants)


def artefact_run(pte: bytes, evidence: Evidence) -> Run:
    return lambda batches: run_artefact(pte, evidence, batches)
