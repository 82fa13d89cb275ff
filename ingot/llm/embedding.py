"""Embeddings of texts from the folder of a cast embedding model, on the ExecuTorch runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ingot.config.validation import parsed_json
from ingot.errors import ArtefactError, InputError
from ingot.llm.generation import PTE, check_saved
from ingot.runtime.bindings import load_method

ENCODER_FILE = "encoder.json"


@dataclass(frozen=True)
class EncoderSpec:
    """What a caller needs to know of the program; its fields are the keys of encoder.json."""

    longest: int  # tokens
    width: int  # numbers of an embedding
    pooling: Literal["mean", "first"]
    normalized: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_folder(folder: Path) -> EncoderSpec:
        try:
            return parsed_json(EncoderSpec, (folder / ENCODER_FILE).read_bytes(), ENCODER_FILE)
        except (OSError, InputError) as e:
            hint = "name a folder that `ingot cast --hf` wrote for a sentence-transformers model"
            raise InputError(f"no embedding model in {folder}", why=str(e), hint=hint) from e


class TextEmbedder:
    """Texts to rows, one after the other; a text that is too long is cut, and counted."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.spec, self.tokenizer, self.cut = EncoderSpec.from_folder(folder), tokenizer, 0
        tokenizer.no_padding()
        tokenizer.no_truncation()
        check_saved(folder)
        try:
            self.program, self.method = load_method(folder / PTE, "forward")
        except Exception as e:
            raise ArtefactError(f"{folder / PTE} does not load", why=str(e), hint="cast it again") from e

    def embed(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self._row(self.tokenizer.encode(t).ids) for t in texts])

    def _row(self, tokens: list[int]) -> Tensor:
        if not tokens:
            raise InputError("a text has no tokens", hint="give some text")
        if len(tokens) > self.spec.longest:  # the last token is a separator, where there is one
            self.cut += 1
            tokens = [*tokens[: self.spec.longest - 1], tokens[-1]]
        (made,) = self.method([torch.tensor([tokens]), torch.arange(len(tokens))])
        return made[0].clone()  # type: ignore[no-any-return]
