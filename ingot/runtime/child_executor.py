"""An executor of delegates in a child process: a crash or a hang of a simulator becomes an ArtefactError.

For targets and extra backends whose executor runs native code: `child_executor("my_package.simulator:run", 60)`.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ingot.errors import ArtefactError
from ingot.targets.base import Executor

_BOOTSTRAP = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from ingot.runtime.child_executor import child_main; child_main(*sys.argv[2:])"
)


def child_executor(function: str, seconds: float) -> Executor:
    """`function` is "module:name" of an Executor. `seconds` are for one batch."""

    def run(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
        import numpy as np

        with tempfile.TemporaryDirectory(prefix="ingot-executor-") as name:
            folder = Path(name)
            (folder / "payload").write_bytes(payload)
            np.savez(folder / "in.npz", **_by_place(batches))
            _launch(function, folder, len(batches), outputs, seconds)
            with np.load(folder / "out.npz") as made:
                return [[made[f"{b}_{i}"] for i in range(outputs)] for b in range(len(batches))]

    return run


def _by_place(batches: list[list[Any]]) -> dict[str, Any]:
    return {f"{b}_{i}": array for b, arrays in enumerate(batches) for i, array in enumerate(arrays)}


def _launch(function: str, folder: Path, batches: int, outputs: int, seconds: float) -> None:
    given = [os.pathsep.join(sys.path), str(folder), function, str(batches), str(outputs)]
    command = [sys.executable, "-c", _BOOTSTRAP, *given]
    what, limit = f"the executor {function} did not finish", seconds * max(1, batches)
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as e:
        raise ArtefactError(what, why=f"it took more than {limit:g} seconds and was killed") from e
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-2:]
        ended = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "an exception"
        raise ArtefactError(what, why=" | ".join([f"it ended with {ended}", *last]))


def child_main(folder: str, function: str, batches: str, outputs: str) -> None:
    """In the child process."""
    import numpy as np

    module, _, name = function.partition(":")
    run: Executor = getattr(importlib.import_module(module), name)
    with np.load(Path(folder) / "in.npz") as given:
        arrays = [_of_batch(given, b) for b in range(int(batches))]
    made = run((Path(folder) / "payload").read_bytes(), arrays, int(outputs))
    np.savez(Path(folder) / "out.npz", **_by_place(made))


def _of_batch(given: Any, b: int) -> list[Any]:
    mine = [k for k in given.files if k.startswith(f"{b}_")]
    return [given[k] for k in sorted(mine, key=lambda k: int(k.split("_")[1]))]
