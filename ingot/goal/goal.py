"""A goal: what the model must still do after quantization, as a user's own metric and bar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ingot.capture.export import user_frame
from ingot.capture.inputs import Batch, copy_of
from ingot.errors import InputError, first_sentence, nearest
from ingot.goal.metrics import NAMED, Metric, MetricFunction, Pairs


@dataclass(frozen=True, eq=False)
class Goal:
    """`Goal("top1", pairs, drop=0.005)`, `Goal("cosine", batches, bar=0.995)`, `Goal(my_metric, pairs, bar=0.9)`.

    `data` holds pairs of (inputs, label); for metrics that compare with the float model, batches alone. `drop`: how
    much worse than the float model it may be; `bar`: the value that it has to reach. Data that was calibrated on
    flatters.
    """

    metric: Metric | MetricFunction | str
    data: Iterable[Any]
    drop: float | None = None
    bar: float | None = None
    lower_is_better: bool | None = None  # of a function of your own; those with a name know

    def __post_init__(self) -> None:
        if (self.drop is None) == (self.bar is None):
            raise InputError("a goal needs either a drop or a bar", hint="drop=0.01, or bar=0.995")
        limit = self.bar if self.drop is None else self.drop
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not math.isfinite(limit):
            raise InputError(f"the {'bar' if self.drop is None else 'drop'} of a goal must be a number, not {limit!r}")
        if self.drop is not None and self.drop < 0:
            raise InputError(f"the drop must not be negative, it is {self.drop:g}", hint="how much worse it may be")
        self.resolved_metric()  # an unknown name is refused here, not after the recording

    def resolved_metric(self) -> Metric:
        if isinstance(self.metric, Metric):
            return self.metric
        if isinstance(self.metric, str):
            if self.metric not in NAMED:
                raise InputError(f"unknown metric '{self.metric}'", hint=nearest(self.metric, NAMED))
            return NAMED[self.metric]
        if not callable(self.metric):
            hint = f"a function of pairs (outputs, label), or one of: {', '.join(NAMED)}"
            raise InputError(f"a metric cannot be a {type(self.metric).__name__}", hint=hint)
        return Metric(getattr(self.metric, "__name__", "metric"), self.metric, not self.lower_is_better)

    def samples(self) -> tuple[list[Batch], list[Any]]:
        """Batches and labels, copied: a loader may reuse its memory."""
        if self.resolved_metric().compares_with_float:
            batches: list[Batch] = [copy_of(b) for b in self.data]
            labels: list[Any] = []
        else:
            pairs = [_pair(p, i) for i, p in enumerate(self.data)]
            batches, labels = [copy_of(b) for b, _ in pairs], [_copied(label) for _, label in pairs]
        if not batches:
            raise InputError("the data of the goal is empty", why="it has 0 batches", hint="give it validation data")
        return batches, labels


def goals_from(value: Goal | Sequence[Goal] | None) -> tuple[Goal, ...]:
    goals = () if value is None else (value,) if isinstance(value, Goal) else tuple(value)
    if odd := [g for g in goals if not isinstance(g, Goal)]:
        raise InputError(f"a goal must be an ingot.Goal, not a {type(odd[0]).__name__}")
    return goals


def _pair(value: Any, number: int) -> tuple[Any, Any]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    why = f"entry {number} is a {type(value).__name__}"
    raise InputError("the data of the goal must be pairs of (inputs, label)", why=why, hint="[(images, labels), …]")


def _copied(label: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), label)


def metric_value(metric: Metric, pairs: Pairs) -> float:
    """What the metric returns, as a finite number; else an error that names the user's line."""
    try:
        value: Any = metric.function(pairs)
    except InputError:
        raise
    except Exception as e:
        why = f"{type(e).__name__}: {first_sentence(e)}"
        raise InputError(f"the metric '{metric.name}' fails", where=user_frame(e), why=why) from e
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "return a number: float(value)"
        raise InputError(f"the metric '{metric.name}' returns a {type(value).__name__}", hint=hint)
    if not math.isfinite(value):
        raise InputError(f"the metric '{metric.name}' returns {value}", hint="return a finite number")
    return float(value)
