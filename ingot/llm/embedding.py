"""Embeddings of texts from the folder of a cast encoder, on the ExecuTorch runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ingot.config.validation import parsed_json
from ingot.errors import ArtefactError, InputError
from ingot.llm.generation import MOST_CONTEXT, PTE, check_saved
from ingot.llm.tokenizer_files import read_tokenizer
from ingot.runtime.bindings import load_method

ENCODER_FILE = "encoder.json"
LEAST_TOKENS = 2  # export takes a size of one for a constant; a shorter text is padded


@dataclass(frozen=True)
class EncoderSpec:
    """What a runner needs to know of the program; its fields are the keys of encoder.json."""

    context: int  # tokens of the longest text; a longer one is cut
    width: int  # of an embedding
    prompt: str = ""  # put before each text
    lower_case: bool = False

    def __post_init__(self) -> None:
        if not LEAST_TOKENS <= self.context <= MOST_CONTEXT or self.width < 1:
            raise ValueError(f"a context is {LEAST_TOKENS} to {MOST_CONTEXT} tokens, and a width is positive")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_folder(folder: Path) -> EncoderSpec:
        try:
            return parsed_json(EncoderSpec, (folder / ENCODER_FILE).read_bytes(), ENCODER_FILE)
        except (OSError, InputError) as e:
            hint = "name a folder that `ingot cast --hf` wrote for an embedding model"
            raise InputError(f"no embedding model in {folder}", why=str(e), hint=hint) from e


@dataclass(frozen=True)
class TextTokens:
    ids: tuple[int, ...]
    cut: bool  # the text is longer than the context


class TextTokenizer:
    """Text to tokens as the model was trained: prompt, case, special tokens; cut to the context."""

    def __init__(self, tokenizer: Any, spec: EncoderSpec) -> None:
        """`tokenizer` is one of the package tokenizers; what it says of lengths is replaced."""
        least = tokenizer.num_special_tokens_to_add(False) + 1
        if spec.context < least:
            why = f"the tokenizer adds {least - 1} special tokens to each text"
            raise InputError(f"a context of {spec.context} tokens is too short", why=why, hint="--context 128")
        tokenizer.no_padding()
        tokenizer.enable_truncation(spec.context)
        self.tokenizer, self.spec = tokenizer, spec

    def __call__(self, text: str) -> TextTokens:
        whole = (self.spec.prompt + text).strip()
        made = self.tokenizer.encode(whole.lower() if self.spec.lower_case else whole)
        if not made.ids:
            raise InputError("the text has no tokens", where=repr(text[:40]), hint="give some text")
        return TextTokens(tuple(made.ids), bool(made.overflowing))


def encoder_inputs(ids: Sequence[int], padding: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask. Whatever token pads, the mask hides it."""
    padding = max(padding, LEAST_TOKENS - len(ids))
    mask = [1] * len(ids) + [0] * padding
    return torch.tensor([[*ids, *[ids[-1]] * padding]]), torch.tensor([mask])


@dataclass(frozen=True)
class TextEmbedding:
    text: str
    vector: tuple[float, ...]
    tokens: int
    cut: bool

    @property
    def facts(self) -> dict[str, Any]:
        return {"text": self.text, "embedding": [*self.vector], "tokens": self.tokens, "cut": self.cut}


class EmbeddingSession:
    """`session.embed(text)`, as often as you like."""

    def __init__(self, method: Any, spec: EncoderSpec, tokenizer: Any, program: Any = None) -> None:
        self.method, self.spec, self.program = method, spec, program  # the program must outlive its methods
        self.tokenizer = TextTokenizer(tokenizer, spec)

    def embed(self, text: str) -> TextEmbedding:
        found = self.tokenizer(text)
        (vector,) = self.method([*encoder_inputs(found.ids)])
        return TextEmbedding(text, tuple(vector[0].tolist()), len(found.ids), found.cut)


def open_embedding_session(folder: Path) -> EmbeddingSession:
    spec, tokenizer = EncoderSpec.from_folder(folder), read_tokenizer(folder)
    check_saved(folder)
    try:
        program, method = load_method(folder / PTE, "forward")
    except Exception as e:
        raise ArtefactError(f"{folder / PTE} does not load", why=str(e), hint="cast it again") from e
    return EmbeddingSession(method, spec, tokenizer, program)


def cosine_similarities(vectors: Sequence[Sequence[float]]) -> list[list[float]]:
    rows = torch.nn.functional.normalize(torch.tensor(vectors, dtype=torch.float64), dim=-1)
    made: list[list[float]] = (rows @ rows.T).tolist()
    return made
