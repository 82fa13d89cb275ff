"""Ingot's and ExecuTorch's own flow: `python -m bench.peers.executorch_peer FLOW make|serve FOLDER [THREADS]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import zoo
from bench.artefact import Artefact
from bench.peers.serving import Arrays, peer_main

FLOW = sys.argv.pop(1) if len(sys.argv) > 1 else "ingot"


def make(folder: Path) -> Path:
    from bench import stock

    entry, path = zoo.load(folder / "entry.pt"), folder / f"{FLOW}.pte"
    path.write_bytes(stock.cast(entry)[0] if FLOW == "stock" else _ingot(entry))
    return path


def _ingot(entry: Any) -> bytes:
    import ingot

    data = entry.calibration
    pte: bytes = ingot.cast(
        entry.model, entry.example_inputs, target="xnnpack", calibration=data, on_mismatch="keep"
    ).pte
    return pte


def load(folder: Path, threads: int) -> Callable[[Arrays], Sequence[Any]]:
    """The runtime has as many threads as its environment says when it starts: the caller sets the affinity."""
    artefact = Artefact(folder / f"{FLOW}.pte")
    return lambda arrays: artefact.run(tuple(map(torch.from_numpy, arrays)))


if __name__ == "__main__":
    peer_main(make, load)
