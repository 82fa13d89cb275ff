"""What every peer does in its own process: make its artefact, load it, run it when it is told to.

Python's library and numpy only: each peer has an environment of its own. `serve` reads one JSON line for each command
and answers with one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Arrays = list[np.ndarray]
Make = Callable[[Path], Path]  # writes the artefact, returns its path
Load = Callable[[Path, int], Callable[[Arrays], Sequence[Any]]]  # the folder of the net, threads
AT_LEAST = 0.02  # seconds that one measurement takes


def batches(folder: Path, kind: str) -> list[Arrays]:
    """`calibration`, `unseen` or the float model's outputs for these, `expected`."""
    with np.load(folder / f"{kind}.npz") as data:
        count = 1 + max(int(name.split("_")[0]) for name in data.files)
        widths = [sum(name.startswith(f"{i}_") for name in data.files) for i in range(count)]
        return [[data[f"{i}_{k}"] for k in range(widths[i])] for i in range(count)]


def peer_main(make: Make, load: Load) -> None:
    """`make FOLDER` or `serve FOLDER THREADS`."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    if verb == "make":
        started = time.perf_counter()
        made = make(folder)
        print(json.dumps({"bytes": made.stat().st_size, "seconds": time.perf_counter() - started}))
    else:
        _serve(folder, int(sys.argv[3]), load)


def _serve(folder: Path, threads: int, load: Load) -> None:
    """First the time to load and run once, and the memory that this took. As many CPUs as threads for every runtime."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    unseen, before, started = batches(folder, "unseen"), resident_bytes(), time.perf_counter()
    run = load(folder, threads)
    run(unseen[0])
    _answer({"load_s": time.perf_counter() - started, "loaded_bytes": resident_bytes() - before})
    for line in sys.stdin:
        _answer(_measured(run, unseen[0]) if line.strip() == "time" else _outputs(run, unseen, folder, line.strip()))


def _measured(run: Callable[[Arrays], Any], inputs: Arrays) -> dict[str, float]:
    """The mean of as many runs as the clock needs."""
    run(inputs)
    started, runs = time.perf_counter(), 0
    while (took := time.perf_counter() - started) < AT_LEAST or runs < 3:
        run(inputs)
        runs += 1
    return {"seconds": took / max(runs, 1), "resident_bytes": resident_bytes()}


def _outputs(run: Callable[[Arrays], Sequence[Any]], unseen: list[Arrays], folder: Path, name: str) -> dict[str, Any]:
    made = [[np.asarray(y) for y in run(x)] for x in unseen]
    save_batches(folder / f"{name}.npz", made)
    return {"batches": len(made)}


def save_batches(path: Path, made: Sequence[Sequence[np.ndarray]]) -> None:
    named: Any = {f"{i}_{k}": x for i, batch in enumerate(made) for k, x in enumerate(batch)}
    np.savez(path, **named)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _answer(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)
