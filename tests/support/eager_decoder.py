"""The quantized graph of a decoder as a session: what the artefact must generate."""

from __future__ import annotations

import torch

import ingot
from ingot.llm import generation as text


class EagerSession(text.Session):
    """The quantized graph in eager torch, with the inputs and outputs of the program."""

    def __init__(self, casting: ingot.Casting, shape: text.Shape) -> None:
        super().__init__(self, shape)
        self.graph = casting.evidence.quantized

    def __call__(self, given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return self.graph(*given)
