"""Cast an embedding model: a sentence-transformers folder in, a verified casting for texts of any length out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ingot.calibrate.held_out import CheckData
from ingot.capture.export import Program, capture_program
from ingot.capture.varying_size import with_varying_size
from ingot.core.host_memory import trim_heap
from ingot.errors import InputError
from ingot.llm.decoder_defaults import trained_context
from ingot.llm.embedding import EncoderSpec
from ingot.llm.float_check import FLOAT_DB, repeated
from ingot.llm.sample_text import SAMPLE_TEXTS
from ingot.llm.sentence_encoder import HINT, EncoderCheckpoint, SentenceEncoder, encoder_inputs
from ingot.patches.program_caches import releases_programs
from ingot.patches.version_errors import explains_version_errors
from ingot.result.casting import Casting
from ingot.verify.metrics import sqnr
from ingot.weight_only.cast_weights import cast_weights
from ingot.weight_only.hessian import record_linear_inputs
from ingot.weight_only.options import weights_from

DEFAULT_LONGEST = 256  # tokens, where the folder does not say
VERIFIED = 6  # sentences that the artefact is verified on


@explains_version_errors
@releases_programs
def cast_encoder(
    found: EncoderCheckpoint,
    *,
    target: str,
    weights: Any = "8da8w",
    context: int | None = None,
    texts: Iterable[str] = (),
    **how: Any,
) -> tuple[Casting, EncoderSpec]:
    """`texts` calibrate the rounding of its weights and verify the result; by default built-in samples do."""
    encoder, longest = SentenceEncoder(found).eval(), context or _longest(found)
    sentences = [s for t in texts if t.strip() for s in _sentences(t)] or [
        s for t in SAMPLE_TEXTS for s in _sentences(t)
    ]
    tokenized = [list(found.tokenizer(s)["input_ids"])[:longest] for s in sentences]
    batches = [*map(encoder_inputs, tokenized)]
    _refuse_other_values(encoder, [*tokenized[:2], repeated(tokenized[0], longest)])
    asked = weights_from(weights)
    with record_linear_inputs(encoder) as recorded, torch.no_grad():
        for batch in batches if asked.uses_calibration else []:
            encoder(*batch)
    trim_heap()
    checked = CheckData([*batches[:VERIFIED], encoder_inputs(repeated(tokenized[0], longest))], "calibration")
    program = _captured(encoder, longest)
    casting = cast_weights(program, target, asked, [], {"recover": False}, recorded=recorded, checked=checked, **how)
    width = int(casting.io.outputs[0].shape[-1])
    return casting, EncoderSpec(longest, width, found.pooling, found.normalized)


def _longest(found: EncoderCheckpoint) -> int:
    trained = trained_context(found.model)
    return min(found.longest or DEFAULT_LONGEST, trained or DEFAULT_LONGEST)


def _sentences(text: str) -> list[str]:
    return [s.strip() for s in re.split(r"(?<=[.!?])\s+", text) if s.strip()]


def _captured(encoder: SentenceEncoder, longest: int) -> Program:
    """For any number of tokens: what captures with two numbers have in common."""
    sizes = longest, max(2, longest // 2 - 1)
    captures = [capture_program(encoder, encoder_inputs([0] * n)) for n in sizes]
    return replace(with_varying_size(*captures), bounded_dims={0: frozenset({1}), 1: frozenset({0})})


def _refuse_other_values(encoder: SentenceEncoder, texts: list[list[int]]) -> None:
    """The step in float against the model as it is, which counts positions and makes masks by itself."""
    name = type(encoder.model).__name__
    for tokens in texts:
        with torch.no_grad():
            db = sqnr(encoder.wanted(tokens), encoder(*encoder_inputs(tokens)))
        if db < FLOAT_DB:
            why = f"SQNR of its float embedding {db:.1f} dB, threshold {FLOAT_DB:.0f}"
            where = f"a text of {len(tokens)} tokens"
            raise InputError(f"unsupported embedding model {name}", where=where, why=why, hint=HINT)
