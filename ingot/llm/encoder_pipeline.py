"""Cast an embedding model: a checkpoint in, a verified casting for texts of any length up to the context out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import Dim

from ingot.calibrate.held_out import EVERY, LEAST_BATCHES, CheckData
from ingot.capture.export import Program, capture_program
from ingot.errors import CaptureError, InputError
from ingot.llm.decoder_defaults import MOST_DEFAULT_CONTEXT, trained_context
from ingot.llm.embedding import LEAST_TOKENS, EncoderSpec, TextTokenizer, encoder_inputs
from ingot.llm.encoder import PADDED, TextEncoder, castable_attention
from ingot.llm.encoder_checkpoint import EncoderCheckpoint, refuse_random_weights
from ingot.llm.position_tables import longest_that
from ingot.llm.sample_text import SAMPLE_TEXTS
from ingot.llm.sentence_layout import PLAIN_CAST
from ingot.llm.tokenizer_files import TOKENIZER_FILE, parsed_tokenizer, tokenizer_files
from ingot.patches.program_caches import releases_programs
from ingot.patches.version_errors import explains_version_errors
from ingot.result.casting import Casting
from ingot.weight_only.cast_weights import cast_weights

DEFAULT_WEIGHTS = "8da8w"
MOST_VERIFIED = 8  # texts: evenly spaced over those that are held out
SHORT = (1, 2, 3, 5, 8)  # words at the beginnings of samples: short texts have the largest error
SAMPLE_NOTE = "no --text: calibrated on built-in samples; representative text gives better quality"
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Texts:
    """Those that calibrate, and those that verify: no text is both."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]


@explains_version_errors
@releases_programs
def cast_encoder(
    checkpoint: EncoderCheckpoint,
    *,
    target: str,
    weights: Any = DEFAULT_WEIGHTS,
    context: int | None = None,
    texts: Iterable[str] = (),
    **how: Any,
) -> tuple[Casting, EncoderSpec]:
    """The encoder, its pooling and what follows it as one program: token ids and mask in, the embedding out.

    It takes one text of any length up to the context. Several texts in a batch would have to be padded, and with two
    dynamic sizes XNNPACK computes each head by itself. `texts` calibrate the rounding of weights.
    """
    encoder, given = TextEncoder(checkpoint).eval(), [t for t in texts if t.strip()]
    longest = context_of_encoder(encoder, checkpoint, context)
    saved = parsed_tokenizer(tokenizer_files(checkpoint.tokenizer)[TOKENIZER_FILE], TOKENIZER_FILE)
    layout = checkpoint.layout
    spec = EncoderSpec(longest, _width(encoder), layout.prompt, layout.lower_case)
    tokens, parts = TextTokenizer(saved, spec), split_texts(given)
    seen, unseen = ([tokens(t).ids for t in some] for some in (parts.seen, parts.unseen))
    with castable_attention(encoder, [unseen[0], _filled(seen[0], longest - PADDED)]) as notes:
        program = _captured(encoder, max(seen, key=len), longest)
    refuse_random_weights(program, checkpoint.missing, "model.")
    data = CheckData([*_verifying(unseen, longest)], "held-out")
    casting = cast_weights(program, target, weights, [encoder_inputs(t) for t in seen], checked=data, **how)
    told = [*casting.notes, *notes, *layout.notes, *([] if given else [SAMPLE_NOTE])]
    return replace(casting, notes=tuple(told)), spec


def context_of_encoder(encoder: TextEncoder, found: EncoderCheckpoint, asked: int | None) -> int:
    """What was asked, or what the model was trained for; no more than it has positions for."""
    if asked is not None and asked < LEAST_TOKENS:
        raise InputError(f"invalid context {asked}", why=f"it is at least {LEAST_TOKENS} tokens", hint="--context 128")
    limits = (found.layout.most_tokens, found.tokenizer.model_max_length, trained_context(found.model))
    trained = min([n for n in limits if isinstance(n, int) and n > 0], default=MOST_DEFAULT_CONTEXT)
    wanted = min(MOST_DEFAULT_CONTEXT, trained) if asked is None else asked
    longest = longest_that(_has_positions(encoder), wanted)
    if asked is not None and longest < asked:
        what, why = f"the context of {asked} tokens is too long", f"the model has positions for {longest}"
        raise InputError(what, where=type(found.model).__name__, why=why, hint=f"--context {longest}")
    return longest


def _has_positions(encoder: TextEncoder) -> Callable[[int], bool]:
    def runs(many: int) -> bool:
        try:
            with torch.no_grad():
                encoder(*encoder_inputs([1] * many))
        except (IndexError, RuntimeError):  # beyond a table of positions, or a buffer of them
            return False
        return True

    return runs


def _width(encoder: TextEncoder) -> int:
    with torch.no_grad():
        return int(encoder(*encoder_inputs([1])).shape[-1])


def split_texts(given: list[str]) -> Texts:
    """Every fourth of many texts is held out. Few texts are all for calibration, and built-in samples verify."""
    if len(given) >= LEAST_BATCHES:
        held = given[EVERY - 1 :: EVERY]
        return Texts(tuple(t for i, t in enumerate(given) if i % EVERY != EVERY - 1), tuple(held))
    *first, last = SAMPLE_TEXTS
    return Texts(tuple(given) or (*_with_sentences(first), *_beginnings(first)), _with_sentences([last]))


def _beginnings(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(" ".join(t.split()[:many]) for t in texts for many in SHORT)


def _with_sentences(texts: Iterable[str]) -> tuple[str, ...]:
    """Short texts too."""
    return tuple(part for t in texts for part in (*re.split(r"(?<=[.?])\s+", t), t))


def _filled(ids: tuple[int, ...], many: int) -> tuple[int, ...]:
    return tuple(ids[i % len(ids)] for i in range(max(many, LEAST_TOKENS)))


def _verifying(texts: list[tuple[int, ...]], longest: int) -> Iterable[Batch]:
    """One of them padded."""
    chosen = [texts[i * len(texts) // MOST_VERIFIED] for i in range(MOST_VERIFIED)] if texts[MOST_VERIFIED:] else texts
    yield from (encoder_inputs(t) for t in chosen)
    if len(chosen[0]) + PADDED <= longest:
        yield encoder_inputs(chosen[0], PADDED)


def _captured(encoder: TextEncoder, ids: tuple[int, ...], longest: int) -> Program:
    length = Dim("length", min=LEAST_TOKENS, max=longest)
    try:
        return capture_program(encoder, encoder_inputs(ids), dynamic_shapes=({1: length}, {1: length}))
    except CaptureError as e:
        where, why = type(encoder.model).__name__, f"it does not export for any length of a text: {e.why}"
        raise InputError("unsupported embedding model", where=where, why=why, hint=PLAIN_CAST) from e
