"""One net by one flow in a process of its own: `python -m bench.families.worker TARGET FLOW NET FOLDER`.

Leaves FOLDER/<flow>.json: delegates, host ops by name and reason, seconds by step, and what executing it gave.
"""

from __future__ import annotations

import json
import logging
import operator
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from bench.entry import Entry, Unavailable
from bench.families.catalogue import family_entry
from bench.worker import cast_entry, leave


def row(target: str, flow: str, name: str, folder: Path) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        entry = family_entry(name)
    except Unavailable as e:
        return {"skipped": str(e)}
    except Exception as e:  # the net itself: its package, or the inputs that were guessed for it
        return {"skipped": f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"}
    built = {"note": entry.note, "build_seconds": round(time.perf_counter() - started, 1)}
    if flow == "probe":
        return {**built, **probe(entry, target)}
    made = {**built, **_cast(entry, target, flow, folder)}
    # A native crash while the artefact runs ends this process: then this is the row.
    (folder / f"{flow}.json").write_text(json.dumps({**made, "error": "the process died while the artefact ran"}))
    return {**made, **_quality(entry, target, folder / f"{flow}.pte")}


def _cast(entry: Entry, target: str, flow: str, folder: Path) -> dict[str, Any]:
    if target == "xnnpack":
        quantize = {"quantize": False} if flow == "float" else {}
        return cast_entry(entry, folder, flow, {"min_sqnr_db": -100.0, **quantize})  # judged here, all flows alike
    from bench import arm_worker

    return arm_worker.cast_entry(entry, target, folder, flow)


def _quality(entry: Entry, target: str, path: Path) -> dict[str, Any]:
    from bench import artefact

    return artefact.quality(entry, path) if target == "xnnpack" else {}


def probe(entry: Entry, target: str) -> dict[str, Any]:
    """Capture and rewrite only: the ops that the target's kernels do not take, with reasons. Seconds, not minutes."""
    import torch

    import ingot
    from ingot.config.recipe import Recipe
    from ingot.core.fx import calls, is_float, source_of, value_of
    from ingot.rewrite.apply import rewrite_for
    from ingot.targets.registry import find_target

    def shapes(node: Any) -> str:
        return str(torch.fx.map_arg(node.args, lambda n: list(getattr(value_of(n), "shape", ()))))

    found, clock = find_target(target), time.perf_counter()
    program = ingot.capture(entry.model, entry.example_inputs)
    captured = time.perf_counter()
    rewritten = rewrite_for(program, found, Recipe())
    ops = list(calls(rewritten.program.module))
    left = [n for n in ops if n.target is not operator.getitem and not found.kernels.ability(n).runs]
    return {
        "capture_seconds": round(captured - clock, 2),
        "rewrite_seconds": round(time.perf_counter() - captured, 2),
        "ops": len(ops),
        "left": [f"{n.target} {'float' if is_float(n) else 'other'} {shapes(n)} ({source_of(n)})" for n in left],
        "not_used": [r for r in rewritten.rewrites if "not used" in r],
    }


def main() -> None:
    target, flow, name, folder = *sys.argv[1:4], Path(sys.argv[4])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    leave(folder, flow, lambda: row(target, flow, name, folder))


if __name__ == "__main__":
    main()
