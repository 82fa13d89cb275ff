"""A random program as plain data: it can be printed, shrunk, saved as JSON and replayed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

Shape = tuple[int, ...]
Attributes = dict[str, Any]


@dataclass(frozen=True)
class Input:
    """One input of the model, and how its numbers are distributed."""

    shape: Shape
    dtype: str = "float32"
    values: str = "normal"
    layout: str = "contiguous"


@dataclass(frozen=True)
class Step:
    """One op. Values are named: `i0` is the first input, `s3` the result of step 3, `s3.1` its second result."""

    name: str
    op: str
    reads: tuple[str, ...]
    attributes: Attributes = field(default_factory=dict)
    tied: str | None = None  # a step of the same op whose weights it shares


@dataclass(frozen=True)
class FuzzProgram:
    """A model, its data, and how it is cast."""

    seed: int
    target: str
    inputs: dict[str, Input]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    returns: str = "tuple"  # tuple, single, dict, nested
    by_keyword: bool = False  # the last input is passed by keyword
    batches: int = 3
    recipe: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def program_from(data: dict[str, Any]) -> FuzzProgram:
    """What `to_json` wrote."""
    inputs = {k: Input(**{**v, "shape": tuple(v["shape"])}) for k, v in data["inputs"].items()}
    steps = tuple(Step(**{**s, "reads": tuple(s["reads"])}) for s in data["steps"])
    return FuzzProgram(**{**data, "inputs": inputs, "steps": steps, "outputs": tuple(data["outputs"])})
