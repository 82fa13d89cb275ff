"""The serialised graphs of a Vulkan program, and a session that interprets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ingot.llm import generation as text
from ingot.runtime.segments import pieces_of, read, run_file
from ingot.targets.vulkan.graph import Graph, decoded
from ingot.targets.vulkan.interpreter import Delegates
from ingot.targets.vulkan.target import BACKEND


def graphs(pte: bytes, method: str = "forward") -> list[Graph]:
    file = read(pte, method)
    return [decoded(p.payload, file.named_data) for p in pieces_of(file.program, {BACKEND}) if p.payload]


class _Program:
    """Loads methods as the runtime does; each call interprets the delegate's bytes."""

    def __init__(self, pte: bytes) -> None:
        self.pte = pte

    def load_method(self, name: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        file = read(self.pte, name)
        executors = {BACKEND: Delegates(file.named_data)}
        return lambda given: run_file(file, [tuple(given)], executors, timeout=600)[0]


def interpreted_session(folder: Path) -> text.Session:
    program = _Program((folder / "model.pte").read_bytes())
    return text.Session(program.load_method("forward"), text.Shape.of(folder), program)
