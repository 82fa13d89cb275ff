"""The serialised graphs of a Vulkan program, and a session that interprets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ingot.llm.generation import DecoderSession, DecoderSpec
from ingot.runtime.segmented_run import read_pte, run_segmented_file, segments_of
from ingot.targets.vulkan.graph import VulkanGraph, decode_delegate
from ingot.targets.vulkan.interpreter import DelegateInterpreter
from ingot.targets.vulkan.target import BACKEND


def graphs(pte: bytes, method: str = "forward") -> list[VulkanGraph]:
    file = read_pte(pte, method)
    return [decode_delegate(p.payload, file.named_data) for p in segments_of(file.program, {BACKEND}) if p.payload]


class _Program:
    """Loads methods as the runtime does; each call interprets the delegate's bytes."""

    def __init__(self, pte: bytes) -> None:
        self.pte = pte

    def load_method(self, name: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        file = read_pte(self.pte, name)
        executors = {BACKEND: DelegateInterpreter(file.named_data)}
        return lambda inputs: run_segmented_file(file, [tuple(inputs)], executors, timeout=600)[0]


def interpreted_session(folder: Path) -> DecoderSession:
    program = _Program((folder / "model.pte").read_bytes())
    return DecoderSession(program.load_method("forward"), DecoderSpec.from_folder(folder), program)
