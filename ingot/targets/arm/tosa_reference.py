"""Runs a TOSA graph on Arm's reference model, in a child process. A crash or a timeout raises ArtefactError."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_tosa(tosa: bytes, given: list[list[Any]], outputs: int, seconds: float) -> list[list[Any]]:
    """The outputs of each batch."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="ingot-tosa-run-") as name:
        folder = Path(name)
        (folder / "graph.tosa").write_bytes(tosa)
        np.savez(folder / "in.npz", **{f"{b}_{i}": a for b, arrays in enumerate(given) for i, a in enumerate(arrays)})
        _launch(folder, len(given), seconds)
        with np.load(folder / "out.npz") as out:
            return [_outputs(out, b, outputs) for b in range(len(given))]


def _outputs(out: Any, b: int, outputs: int) -> list[Any]:
    from ingot.errors import ArtefactError

    made = [k for k in out.files if k.startswith(f"{b}_")]
    if len(made) != outputs:
        why = f"the program expects {outputs}, the TOSA graph has {len(made)}"
        raise ArtefactError("wrong number of outputs of the TOSA graph", why=why, hint="lower the model again")
    return [out[f"{b}_{i}"] for i in range(outputs)]


def _launch(folder: Path, batches: int, seconds: float) -> None:
    from ingot.errors import ArtefactError

    command = [sys.executable, "-P", __file__, str(folder), str(batches)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as e:
        raise ArtefactError("the TOSA reference model timed out", why=f"it took more than {seconds:g} s") from e
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise ArtefactError("the TOSA reference model failed", why=" | ".join(last) or f"exit code {done.returncode}")


# ---- in the child process ----


def main(folder: Path, batches: int) -> None:
    import numpy as np
    import tosa_reference_model as model

    graph = (folder / "graph.tosa").read_bytes()
    out: dict[str, Any] = {}
    with np.load(folder / "in.npz") as given:
        for b in range(batches):
            names = sorted((k for k in given if k.startswith(f"{b}_")), key=lambda k: int(k.split("_")[1]))
            arrays = [given[k] for k in names]
            results, status = model.run(graph, arrays, verbosity="LOW", initialize_variable_tensor_from_numpy=True)
            if status != model.GraphStatus.TOSA_VALID:
                raise SystemExit(f"the graph is not valid TOSA: {status}")
            out |= {f"{b}_{i}": a for i, a in enumerate(results)}
    np.savez(folder / "out.npz", **out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
