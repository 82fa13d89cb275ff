"""The float model in PyTorch, eager or compiled: `python -m bench.peers.torch_peer eager|compiled make|serve …`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import zoo
from bench.peers.serving import Arrays, peer_main

HOW = sys.argv.pop(1) if len(sys.argv) > 1 else "eager"


def make(folder: Path) -> Path:
    path = folder / "float.pt"
    torch.save(zoo.load(folder / "entry.pt").model.state_dict(), path)
    return path


def load(folder: Path, threads: int) -> Callable[[Arrays], Sequence[Any]]:
    torch.set_num_threads(threads)
    model = zoo.load(folder / "entry.pt").model.eval()
    run = torch.compile(model) if HOW == "compiled" else model

    @torch.no_grad()
    def call(arrays: Arrays) -> Sequence[Any]:
        return torch.utils._pytree.tree_leaves(run(*map(torch.from_numpy, arrays)))

    return call


if __name__ == "__main__":
    peer_main(make, load)
