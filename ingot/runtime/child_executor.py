"""An executor of delegates in a child process: a crash or a hang of a simulator becomes an ArtefactError.

For targets and extra backends whose executor runs native code: `child_executor("my_package.simulator:run", 60)`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ingot.errors import ArtefactError
from ingot.runtime import executor_process
from ingot.targets.base import Executor


def child_executor(function: str, seconds: float) -> Executor:
    """`function` is "module:name" of an Executor. `seconds` are for one batch."""

    def run(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
        import numpy as np

        with tempfile.TemporaryDirectory(prefix="ingot-executor-") as name:
            folder = Path(name)
            (folder / "payload").write_bytes(payload)
            np.savez(folder / "in.npz", **executor_process.by_place(batches))
            _launch(function, folder, len(batches), outputs, seconds * max(1, len(batches)))
            with np.load(folder / "out.npz") as made:
                return [[made[f"{b}_{i}"] for i in range(outputs)] for b in range(len(batches))]

    return run


def _launch(function: str, folder: Path, batches: int, outputs: int, limit: float) -> None:
    given = [os.pathsep.join(sys.path), str(folder), function, str(batches), str(outputs)]
    command = [sys.executable, "-P", str(executor_process.__file__), *given]
    what = f"the executor {function} did not finish"
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as e:
        raise ArtefactError(what, why=f"it took more than {limit:g} seconds and was killed") from e
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-2:]
        ended = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "an exception"
        raise ArtefactError(what, why=" | ".join([f"it ended with {ended}", *last]))
