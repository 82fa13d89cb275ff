"""Write what all peers read: the model, its ONNX form, and calibration and unseen data with the float outputs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bench.entry import Entry, Inputs
from bench.peers import nets
from bench.peers.serving import save_batches


def main(name: str, folder: Path) -> None:
    entry = _split(nets.build(name))
    entry.model.eval()
    torch.save(entry, folder / "entry.pt")
    _save(folder / "calibration.npz", entry.calibration)
    _save(folder / "unseen.npz", entry.held_out or ())
    with torch.no_grad():
        outputs = [tuple(torch.utils._pytree.tree_leaves(entry.model(*x))) for x in entry.held_out or ()]
    _save(folder / "expected.npz", outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(entry.model, entry.example_inputs, folder / "model.onnx", dynamo=True, verbose=False)


def _split(entry: Entry) -> Entry:
    """A quarter of the data is for no flow to see, where the entry has no such data."""
    if entry.held_out:
        return replace(entry, held_out=entry.held_out[:16])
    kept = max(1, len(entry.calibration) // 4)
    return replace(entry, calibration=entry.calibration[:-kept], held_out=entry.calibration[-kept:])


def _save(path: Path, batches: Sequence[Inputs]) -> None:
    save_batches(path, [[x.numpy() for x in batch] for batch in batches])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
