"""Compare our decoder in float with `model()` of `transformers`, before anything is quantized.

Verification compares the artefact with our decoder. Here our decoder is compared with the user's model, with its own
attention, masks and position embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.errors import InputError, first_sentence
from ingot.llm.attention import PLAIN_MODEL
from ingot.llm.decoder import Decoder
from ingot.llm.kv_cache import kv_capacity_for, update_kv_cache
from ingot.llm.runner_decoder import RunnerDecoder, RunnerText
from ingot.verify.metrics import sqnr

FLOAT_DB = 60.0  # SQNR of the logits of each position. Rounding in float32 leaves 90 dB and more.
CHECK_TOKENS = 80  # of the sample: two full chunks of a prompt, a partial chunk, and single tokens
CHECK_SINGLES = 8  # tokens that are checked one after the other
LAST_SINGLES = 2  # tokens at the end of the context


def check_decoder(decoder: Decoder, tokens: Sequence[int], chunk: int) -> None:
    """Raise an InputError at the first position whose logits are not those of the model."""
    sample = list(tokens)[: min(decoder.context, CHECK_TOKENS)]
    if not sample:
        raise InputError("the sample text has no tokens", hint="give some text")
    with torch.no_grad():
        wanted = decoder.model(input_ids=torch.tensor([sample]), use_cache=False).logits[0]
        singles = sample[:CHECK_SINGLES]
        _refuse_difference(decoder, wanted, stepwise_logits(decoder, singles, [1] * len(singles)), "token by token")
        prompt = max(len(sample) - CHECK_SINGLES, 0)
        widths = [*[chunk] * -(-prompt // chunk), *[1] * CHECK_SINGLES]
        how = f"a prompt of {prompt} tokens in chunks of {chunk}, then token by token"
        _refuse_difference(decoder, wanted, stepwise_logits(decoder, sample, widths, prompt), how)


def check_runner_decoder(decoder: RunnerDecoder, tokens: Sequence[int], chunk: int) -> None:
    """The same for a program that owns its KV cache; rows that were never written hold garbage."""
    sample = list(tokens)[: min(decoder.context, CHECK_TOKENS)]
    if not sample:
        raise InputError("the sample text has no tokens", hint="give some text")
    prompt = max(len(sample) - CHECK_SINGLES, 0)
    parts = [sample[i : min(i + chunk, prompt)] for i in range(0, prompt, chunk)]
    with torch.no_grad():
        wanted = decoder.model(input_ids=torch.tensor([sample]), use_cache=False).logits[0]
        text = RunnerText(decoder.buffers_of_program, lambda t, p, c, *rows: decoder.run(t, p, c, rows, last=False))
        for cache in text.cache:
            cache.normal_()
        made = torch.cat([_text_in_words(decoder, text, p) for p in (*parts, *([t] for t in sample[prompt:]))])
        how = f"a prompt of {prompt} tokens in chunks of {chunk}, then token by token"
        _refuse_difference(decoder, wanted, made, how)
        _check_last_positions(decoder, repeated(tokens, decoder.context), text)


def repeated(tokens: Sequence[int], many: int) -> list[int]:
    return [tokens[i % len(tokens)] for i in range(many)]


def _check_last_positions(decoder: RunnerDecoder, filled: list[int], text: RunnerText) -> None:
    """The text begins again, as after the reset of a runner: rows of the first one are still there."""
    prompt, text.position = max(decoder.context - LAST_SINGLES, 1), 0
    ids = torch.tensor([filled])
    logits = decoder.model(input_ids=ids, use_cache=False, logits_to_keep=LAST_SINGLES + 1).logits[0]
    wanted = logits[-LAST_SINGLES - 1 :]  # some models return all
    text.step = decoder
    made = torch.cat([_text_in_words(decoder, text, p) for p in (filled[:prompt], *([t] for t in filled[prompt:]))])
    _refuse_difference(decoder, wanted, made, f"a text of {decoder.context} tokens, the last ones token by token")


def _text_in_words(decoder: RunnerDecoder, text: RunnerText, part: list[int]) -> Tensor:
    try:
        return text.logits(part)
    except InputError:
        raise
    except Exception as e:  # whatever the code of a model raises
        where = f"{type(decoder.model).__name__}, a step of {len(part)} tokens"
        why = f"{type(e).__name__}: {first_sentence(e)}"
        raise InputError("unsupported decoder architecture", where=where, why=why, hint=PLAIN_MODEL) from e


def stepwise_logits(decoder: Decoder, tokens: list[int], widths: Sequence[int], prompt: int = 0) -> Tensor:
    """The logits of all positions, by steps of the given widths; a step does not cross the end of the prompt."""
    cache, at, made = decoder.empty_cache(kv_capacity_for(len(tokens), decoder.context)), 0, list[Tensor]()
    for width in widths:
        part = tokens[at : min(at + width, prompt if at < prompt else len(tokens))]
        if part:
            logits, *new = _step_in_words(decoder, decoder.inputs_for(part, cache, at, width))
            update_kv_cache(cache, new, at, len(part))
            made.append(logits[-len(part) :])
        at += len(part)
    return torch.cat(made)


def _step_in_words(decoder: Decoder, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    try:
        return decoder.step(0, *inputs)
    except Exception as e:  # whatever the code of a model raises
        where = f"{type(decoder.model).__name__}, a step of {inputs[0].numel()} tokens"
        why = f"{type(e).__name__}: {first_sentence(e)}"
        raise InputError("unsupported decoder architecture", where=where, why=why, hint=PLAIN_MODEL) from e


def _refuse_difference(decoder: Decoder, wanted: Tensor, made: Tensor, how: str) -> None:
    name = type(decoder.model).__name__
    for position, (w, m) in enumerate(zip(wanted, made, strict=False)):
        if bool(w.isnan().any()):
            why = f"logits of token {position} are not a number"
            raise InputError(f"{name} has no finite logits on the sample", why=why, hint="check its weights, or --text")
        if (db := sqnr(w, m)) < FLOAT_DB:
            where = f"token {position} of the sample, {how}"
            why = f"SQNR of its float logits with a KV cache {db:.1f} dB, threshold {FLOAT_DB:.0f}"
            raise InputError(f"unsupported decoder architecture {name}", where=where, why=why, hint=PLAIN_MODEL)
