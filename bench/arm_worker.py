"""One step of the Arm bench in a process of its own: `python -m bench.arm_worker TARGET STEP MODEL FOLDER [FLOW]`.

Steps: build; then of each flow, stock or ingot: cast, check, cost. Each leaves FOLDER/<step>[-<flow>].json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bench import arm_models, zoo
from bench.entry import Entry, Unavailable
from bench.worker import leave

RECIPE = {"min_sqnr_db": -100.0, "verify_batches": 2}  # the bench judges for itself, and on more


def build(name: str, folder: Path) -> dict[str, Any]:
    try:
        entry = arm_models.build(name)
    except Unavailable as e:
        return {"skipped": str(e)}
    torch.save(entry, folder / "entry.pt")
    return {"note": entry.note, "parameters": sum(p.numel() for p in entry.model.parameters())}


def cast(target: str, folder: Path, flow: str) -> dict[str, Any]:
    return cast_entry(zoo.load(folder / "entry.pt"), target, folder, flow)


def cast_entry(entry: Entry, target: str, folder: Path, flow: str) -> dict[str, Any]:
    from bench import arm_stock, artefact  # noqa: F401  both flows find executorch imported when the clock starts

    started = time.perf_counter()
    made = _stock(entry, target) if flow == "stock" else _ingot(entry, target)
    total = time.perf_counter() - started
    path = folder / f"{flow}.pte"
    path.write_bytes(made.pte)
    for digest, tosa in made.tosa.items():
        _tosa(folder, flow, digest).write_bytes(tosa)
    verify = made.facts["timings"].get("verify", 0.0)
    seconds = {"seconds": total - verify, "verify_seconds": verify}
    found = {**artefact.instructions(path), "bytes": len(made.pte), "digests": made.digests}
    return {**made.facts, **found, **seconds}


def _stock(entry: Entry, target: str) -> Any:
    """With HASTEN its passes do not trace again what is known: the same bytes sooner (tests/test_retracing)."""
    from bench import arm_stock
    from ingot.patches.speed_contexts import fast_lowering

    with fast_lowering() if os.environ.get("HASTEN") else nullcontext():
        return arm_stock.cast(entry, target)


def _tosa(folder: Path, flow: str, digest: str) -> Path:
    return folder / f"{flow}-{digest[:16]}.tosa"


def _ingot(entry: Entry, target: str) -> Any:
    import ingot
    from bench.arm_stock import Made

    recipe = {**RECIPE, "options": {"run_on": "reference-model"}} if target == "vgf" else RECIPE
    casting = ingot.cast(
        entry.model, entry.example_inputs, target=target, calibration=entry.calibration, recipe=recipe,
        on_mismatch="keep",
    )  # fmt: skip
    tosa = {d.digest: d.files["graph.tosa"] for d in casting.delegates}
    return Made(casting.pte, [d.digest for d in casting.delegates], tosa, _facts(casting))


def _facts(casting: Any) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for op in casting.host_ops:
        kinds[op.op] = kinds.get(op.op, 0) + 1
    return {
        "delegates": len(casting.delegates),
        "delegated_ops": sum(d.ops for d in casting.delegates),
        "host_ops": len(casting.host_ops),
        "host_kinds": kinds,
        "host_reasons": [f"{op.op} {op.name} ({op.source}): {op.reason}" for op in casting.host_ops],
        "notes": list(casting.notes),
        "timings": dict(casting.timings),
        "check_passed": casting.check.passed,
        "faithful_db": min((o.faithful_db for o in casting.check.outputs), default=None),
        "culprit": casting.check.culprit,
    }


def check(target: str, folder: Path, flow: str) -> dict[str, Any]:
    """Execute the program, stock's as ours: each delegate's TOSA on the reference model, the rest on the runtime."""
    from bench.artefact import judged
    from ingot.runtime.segmented_run import run_segmented
    from ingot.targets.arm.runner import EXECUTED_ON, REFERENCE

    entry = zoo.load(folder / "entry.pt")
    batches = (entry.held_out or entry.calibration)[: arm_models.JUDGED]
    backend = "VgfBackend" if target == "vgf" else "EthosUBackend"
    started = time.perf_counter()
    made = run_segmented((folder / f"{flow}.pte").read_bytes(), batches, {backend: _executor(folder, flow)}, 3600)
    seconds = time.perf_counter() - started
    return {**judged(entry, batches, made), "executed_on": EXECUTED_ON[REFERENCE], "run_seconds": seconds}


def _executor(folder: Path, flow: str) -> Any:
    from ingot.targets.arm.tosa_reference import run_tosa
    from ingot.targets.base import digest

    def run(payload: bytes, given: list[list[Any]], outputs: int) -> list[list[Any]]:
        tosa = _tosa(folder, flow, digest(payload))
        return run_tosa(tosa.read_bytes(), given, outputs, 3600)  # the step itself has a limit

    return run


def cost(target: str, folder: Path, flow: str) -> dict[str, Any]:
    """What Vela expects of each delegate: cycles added up, for they run in turn, SRAM of the one that needs most."""
    from bench.vela import measure

    digests = json.loads((folder / f"cast-{flow}.json").read_text())["digests"]
    found = {d: measure(_tosa(folder, flow, d).read_bytes(), target) for d in set(digests)}
    each = [found[d] for d in digests]
    whole = {"cycles": sum(p.cycles for p in each), "sram_bytes": max(p.sram_bytes for p in each)} if each else {}
    return {**whole, "by_delegate": [p.to_dict() for p in each]}


def main() -> None:
    target, step, name, folder = *sys.argv[1:4], Path(sys.argv[4])
    if step == "build":
        return leave(folder, "build", lambda: build(name, folder))
    flow = sys.argv[5]
    steps = {"cast": cast, "check": check, "cost": cost}
    return leave(folder, f"{step}-{flow}", lambda: steps[step](target, folder, flow))


if __name__ == "__main__":
    main()
