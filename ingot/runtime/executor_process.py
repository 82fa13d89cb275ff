"""The child process of `child_executor`, run as a file: it imports nothing but the executor and numpy.

Arguments: the import path, a folder with `payload` and `in.npz`, "module:function", the number of batches, of outputs.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any


def child_main(folder: Path, function: str, batches: int, outputs: int) -> None:
    import numpy as np

    module, _, name = function.partition(":")
    run = getattr(importlib.import_module(module), name)
    with np.load(folder / "in.npz") as given:
        arrays = [_of_batch(given, b) for b in range(batches)]
    np.savez(folder / "out.npz", **by_place(run((folder / "payload").read_bytes(), arrays, outputs)))


def by_place(batches: list[list[Any]]) -> dict[str, Any]:
    """Arrays by "batch_number"."""
    return {f"{b}_{i}": array for b, arrays in enumerate(batches) for i, array in enumerate(arrays)}


def _of_batch(given: Any, b: int) -> list[Any]:
    mine = [k for k in given.files if k.startswith(f"{b}_")]
    return [given[k] for k in sorted(mine, key=lambda k: int(k.split("_")[1]))]


if __name__ == "__main__":
    sys.path[:] = sys.argv[1].split(os.pathsep)
    child_main(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
