"""An encoder with its pooling as one module: token ids and attention mask of a text in, its embedding out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ingot.errors import InputError, first_sentence
from ingot.llm.embedding import encoder_inputs
from ingot.llm.encoder_attention import encoder_attention
from ingot.llm.encoder_checkpoint import EncoderCheckpoint
from ingot.llm.sentence_layout import PLAIN_CAST
from ingot.verify.metrics import sqnr

FLOAT_DB = 60.0  # SQNR between two forms of attention in float. Rounding in float32 leaves 100 dB and more.
PADDED = 3  # tokens of padding, where the mask is compared
OWN_ATTENTION = "attention is the code of the model itself: with a length that varies it is several delegates"


class TextEncoder(nn.Module):
    """One text. Its tokens are all of the first type, where the model has types."""

    def __init__(self, found: EncoderCheckpoint) -> None:
        super().__init__()
        self.model, self.pooling = found.model, found.layout.pooling
        self.stages = nn.ModuleList(found.layout.stages)
        self.typed = "token_type_ids" in inspect.signature(found.model.forward).parameters

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        types = {"token_type_ids": torch.zeros_like(input_ids)} if self.typed else {}
        made = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        x: Tensor = self.pooling(made.last_hidden_state, attention_mask)
        for stage in self.stages:
            x = stage(x)
        return x


@contextmanager
def castable_attention(encoder: TextEncoder, samples: list[tuple[int, ...]]) -> Iterator[tuple[str, ...]]:
    """The encoder with our attention if it gives the same embeddings, else with its own; a note says so."""
    same, used = _compared(encoder, samples)
    with encoder_attention(encoder.model) if same else nullcontext():
        yield () if same and used else (OWN_ATTENTION,)


def _compared(encoder: TextEncoder, samples: list[tuple[int, ...]]) -> tuple[bool, bool]:
    """Whether our attention, and our masks, give the embeddings of the model's own; and whether the model calls it."""
    batches = [encoder_inputs(ids, padding) for ids in samples for padding in (0, PADDED)]
    with torch.no_grad():
        wanted = [_run(encoder, b) for b in batches]
        try:
            with encoder_attention(encoder.model) as calls:
                made = [encoder(*b) for b in batches]
        except Exception:  # whatever the code of a model raises: its own attention remains
            return False, False
    return min(sqnr(w, m) for w, m in zip(wanted, made, strict=True)) >= FLOAT_DB, bool(calls)


def _run(encoder: TextEncoder, batch: tuple[Tensor, Tensor]) -> Tensor:
    name, many = type(encoder.model).__name__, batch[0].shape[1]
    try:
        made: Tensor = encoder(*batch)
    except Exception as e:  # whatever the code of a model raises
        where, why = f"{name}, a text of {many} tokens", f"{type(e).__name__}: {first_sentence(e)}"
        raise InputError("unsupported embedding model", where=where, why=why, hint=PLAIN_CAST) from e
    if made.dim() != 2 or not bool(made.isfinite().all()):
        why = "its embedding is no vector of finite numbers"
        raise InputError("unsupported embedding model", where=name, why=why, hint="check its weights")
    return made
