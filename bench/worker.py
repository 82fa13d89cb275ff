"""One step of the bench in a process of its own: `python -m bench.worker STEP MODEL FOLDER [ARGUMENT]`.

Steps: build; cast stock|ingot; check stock|ingot; time ROUNDS. Each leaves FOLDER/<step>[-<argument>].json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench import zoo

FLOWS = ("stock", "ingot")


def build(name: str, folder: Path) -> dict[str, Any]:
    try:
        entry = zoo.build(name)
    except zoo.Unavailable as e:
        return {"skipped": str(e)}
    torch.save(entry, folder / "entry.pt")
    return {"note": entry.note, "parameters": sum(p.numel() for p in entry.model.parameters())}


def cast(folder: Path, flow: str) -> dict[str, Any]:
    return cast_entry(zoo.load(folder / "entry.pt"), folder, flow)


def cast_entry(entry: zoo.Entry, folder: Path, flow: str, recipe: dict[str, Any] | None = None) -> dict[str, Any]:
    """Cast, and leave FOLDER/<flow>.pte."""
    from bench import artefact, stock  # both flows find executorch imported when the clock starts

    started = time.perf_counter()
    pte, facts = stock.cast(entry) if flow == "stock" else _ingot(entry, recipe)
    total = time.perf_counter() - started
    verify = facts["timings"].get("verify", 0.0)
    path = folder / f"{flow}.pte"
    path.write_bytes(pte)
    seconds = {"seconds": total - verify, "verify_seconds": verify}
    return {**facts, **artefact.instructions(path), "bytes": len(pte), **seconds}


def _ingot(entry: zoo.Entry, recipe: dict[str, Any] | None) -> tuple[bytes, dict[str, Any]]:
    import ingot

    casting = ingot.cast(
        entry.model, entry.example_inputs, target="xnnpack", calibration=entry.calibration, on_mismatch="keep",
        recipe=recipe,
    )  # fmt: skip
    kinds: dict[str, int] = {}
    for op in casting.host_ops:
        kinds[op.op] = kinds.get(op.op, 0) + 1
    check = casting.check
    return casting.pte, {
        "delegates": len(casting.delegates),
        "delegated_ops": sum(d.ops for d in casting.delegates),
        "host_ops": len(casting.host_ops),
        "host_kinds": kinds,
        "host_reasons": [f"{op.op} ({op.source}): {op.reason}" for op in casting.host_ops],
        "disagrees": any(o.disagrees for o in check.outputs) if check else None,
        "timings": dict(casting.timings),
        "check_passed": check.passed if check else None,
        "culprit": check.culprit if check else None,
    }


def check(folder: Path, flow: str) -> dict[str, Any]:
    from bench import artefact

    return artefact.quality(zoo.load(folder / "entry.pt"), folder / f"{flow}.pte")


def clock(folder: Path, rounds: int) -> dict[str, Any]:
    from bench import artefact

    runnable = {f: folder / f"{f}.pte" for f in FLOWS if "sqnr_db" in _read(folder / f"check-{f}.json")}
    return artefact.latency(zoo.load(folder / "entry.pt").example_inputs, runnable, rounds)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    step, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    argument = sys.argv[4] if len(sys.argv) > 4 else ""
    if step == "build":
        leave(folder, "build", lambda: build(name, folder))
    elif step == "time":
        leave(folder, "time", lambda: clock(folder, int(argument)))
    else:
        leave(folder, f"{step}-{argument}", lambda: {"cast": cast, "check": check}[step](folder, argument))


def leave(folder: Path, name: str, work: Callable[[], dict[str, Any]]) -> None:
    """Write the result of a step, or how it failed, to FOLDER/<name>.json."""
    try:
        result = work()
    except Exception as e:
        lines = str(e).strip().splitlines() or [""]
        result = {"error": f"{type(e).__name__}: {lines[0]}"[:400], "detail": str(e)[:4000]}
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
