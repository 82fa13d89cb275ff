"""The quantized graph of a decoder as a session: what the artefact must generate."""

from __future__ import annotations

import torch

import ingot
from ingot.llm.generation import DecoderSession, DecoderSpec, ProgramSession


class QuantizedGraphSession(DecoderSession):
    """The quantized graph in eager torch, called like the program."""

    def __init__(self, casting: ingot.Casting, spec: DecoderSpec) -> None:
        super().__init__(self, spec)
        self.graph = casting.evidence.quantized

    def __call__(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self.graph(*inputs)


class QuantizedProgramSession(ProgramSession):
    """The same for a program that owns its KV cache."""

    def __init__(self, casting: ingot.Casting, spec: DecoderSpec) -> None:
        super().__init__(self, spec)
        self.graph = casting.evidence.quantized

    def __call__(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self.graph(*inputs)
