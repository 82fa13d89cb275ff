"""The result of localization as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ValueCheck:
    """One value of the program, compared twice; None where it was not observed or is no float tensor."""

    name: str
    op: str
    source: str
    stored: str  # "int8", "int16", "float", or "fused": inside a kernel, never stored
    graph_db: float | None  # SQNR of the quantized graph against the float program: rounding
    artefact_db: float | None = None  # SQNR of the artefact against the quantized graph: the backend
    steps: float | None = None  # the largest difference between those two, in units of the value's scale


@dataclass(frozen=True)
class Finding:
    """Where the error starts, and its cause.

    `kind` is "none", "rounding" (the plan is too coarse), "backend" (a kernel disagrees with the quantized graph),
    "file" (the file is not what this plan lowers to), "hidden" (the error disappears with extra outputs) or
    "unfinished" (the search took more than `localize_seconds`).
    """

    target: str
    executed_on: str
    kind: str
    verdict: str  # one sentence
    culprit: str | None  # the value where the error starts, with the user's line and numbers
    value: str | None  # its name
    values: tuple[ValueCheck, ...]  # in graph order
    largest_sqnr_drop: str | None  # the value with the largest SQNR drop from float program to quantized graph
    mismatch: str | None  # the value whose op disagrees with the quantized graph
    lowerings: int  # how often the graph was lowered again with extra outputs
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
