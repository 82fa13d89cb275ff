"""What a search for a goal found, step by step. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GoalValue:
    """One goal as measured: of the float model, of the artefact, and the bar between them."""

    metric: str
    float_value: float
    bar: float
    higher_is_better: bool
    value: float  # of the artefact, or of the quantized graph in a step of the search

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.higher_is_better else self.value <= self.bar

    def __str__(self) -> str:
        sign = "at least" if self.higher_is_better else "at most"
        return f"{self.metric} {self.value:.6g} ({sign} {self.bar:.6g}; float model {self.float_value:.6g})"


@dataclass(frozen=True)
class SearchStep:
    """One plan of the search, measured on the quantized graph."""

    noise_vs_latency: float
    estimated_time: float  # in units of the quickest plan
    precisions: Mapping[str, int]  # how many ops run in each
    values: tuple[GoalValue, ...]

    @property
    def met(self) -> bool:
        return all(v.met for v in self.values)


@dataclass(frozen=True)
class GoalResult:
    """The goals of a cast: what the artefact reaches, how the plan was found, and why the search ended there."""

    values: tuple[GoalValue, ...]  # of the artefact
    steps: tuple[SearchStep, ...]
    ended: str
    limits: tuple[str, ...] = ()  # where the goal is not met: what stands in the way

    @property
    def met(self) -> bool:
        return all(v.met for v in self.values)
