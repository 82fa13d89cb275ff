"""What the localiser hands over: plain data, and the sentences made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ValueCheck:
    """One value of the program, compared twice; None where it was not looked at or is no float tensor."""

    name: str
    op: str
    source: str
    stored: str  # "int8", "int16", "float", or "fused": it is never stored, a kernel passes it on
    graph_db: float | None  # quantized graph against the float program: rounding
    artefact_db: float | None = None  # artefact against the quantized graph: the backend
    steps: float | None = None  # the largest difference between those two, in steps of how the value is stored


@dataclass(frozen=True)
class Finding:
    """Where the error starts, and whose it is.

    `kind` is "none", "rounding" (the plan is too coarse), "backend" (it computes an op otherwise than the graph says),
    "file" (the file is not what this plan is lowered to) or "hidden" (it goes away when one looks).
    """

    target: str
    executed_on: str
    kind: str
    verdict: str  # one sentence
    culprit: str | None  # the value that is to blame, with the user's line and numbers
    value: str | None  # its name
    values: tuple[ValueCheck, ...]  # in graph order
    coarsest: str | None  # where float program and quantized graph part most
    strays: str | None  # the first value at which the artefact leaves its quantized graph
    lowerings: int  # how often the graph was lowered again to look inside
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
