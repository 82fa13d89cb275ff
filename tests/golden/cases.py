"""The golden casts: small nets on some targets, and the hashes of what is made of them.

`python -m tests.golden.cases` prints the hashes of all cases, or of those that are named, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import ingot
from tests.support.models import case as net_and_batches


@dataclass(frozen=True)
class GoldenCase:
    net: str  # of tests/support/models.py
    target: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None


ON_HOST = {"options": {"run_on": "reference-model"}}
CASES = {
    "xnnpack, conv used twice": GoldenCase("conv used twice", "xnnpack"),
    "xnnpack, shared head": GoldenCase("head shared over three levels", "xnnpack"),
    "xnnpack, float region": GoldenCase(
        "three ConvNeXt blocks", "xnnpack", {"scopes": [{"path": "blocks.1", "precision": "float"}]}
    ),
    "xnnpack, 8da4w": GoldenCase("learned query", "xnnpack", weights="8da4w"),
    "ethos-u55-128, class token": GoldenCase("class token", "ethos-u55-128"),
    "ethos-u55-128, transposed conv": GoldenCase("grouped transposed conv and batch norm", "ethos-u55-128"),
    "vgf, padded cat": GoldenCase("factory in a padded cat", "vgf", ON_HOST),
    "vgf, int16 region": GoldenCase(
        "channels-last in mid-graph", "vgf", {**ON_HOST, "scopes": [{"path": "b", "precision": "int16"}]}
    ),
}


def made(case: GoldenCase) -> tuple[ingot.Plan, bytes]:
    """The plan and the .pte. Nothing is verified: other tests do that."""
    with _one_thread():
        model, batches = net_and_batches(case.net)
        if case.weights:
            casting = ingot.cast(model, batches[0], target=case.target, weights=case.weights, calibration=batches)
            return casting.plan, casting.pte
        program = ingot.capture(model, batches[0])
        plan = ingot.plan(program, ingot.record(program, batches), case.target, recipe=dict(case.recipe))
        return plan, ingot.lower(program, plan).pte


@contextmanager
def _one_thread() -> Iterator[None]:
    """Float sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def hashes(case: GoldenCase) -> dict[str, str]:
    """Of the numbers in the plan, of the whole plan with its reasons, and of the .pte."""
    plan, pte = made(case)
    return {"plan": _sha256(numbers(plan)), "plan_json": _sha256(plan.to_json().encode()), "pte": _sha256(pte)}


def numbers(plan: ingot.Plan) -> bytes:
    """What a plan decides, without its reasons."""
    points = [[str(d.point), asdict(d.qparams) if d.qparams else None] for d in plan]
    corrections = {name: list(values) for name, values in sorted(plan.bias_corrections.items())}
    found = {"target": plan.target, "points": points, "bias_corrections": corrections}
    return json.dumps(found | ({"dynamic": plan.dynamic} if plan.dynamic else {})).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def versions() -> dict[str, str]:
    """The packages on which the numbers depend."""
    from importlib.metadata import version

    return {name: version(name).partition("+")[0] for name in ("torch", "executorch", "torchao")}


def cpu() -> str:
    """The vector instructions, on which float sums depend."""
    return str(torch.backends.cpu.get_cpu_capability())


if __name__ == "__main__":
    print(json.dumps({name: hashes(CASES[name]) for name in sys.argv[1:] or CASES}))
