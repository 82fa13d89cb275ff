"""Cast a decoder: a checkpoint in, a verified casting with a decode and a prefill method out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ingot.calibrate.held_out import CheckData
from ingot.capture.export import Program, capture_program
from ingot.capture.kv_buffers import POSITIONS, TOKENS
from ingot.capture.varying_size import with_varying_size
from ingot.core.host_memory import evict_after_forward, trim_heap
from ingot.errors import InputError
from ingot.llm.checkpoint import Checkpoint
from ingot.llm.decoder import STEP_INPUTS, Decoder
from ingot.llm.decoder_defaults import context_for, decoder_weights, kv_cache_owner, trained_context
from ingot.llm.float_check import LAST_SINGLES, check_decoder, check_runner_decoder, repeated
from ingot.llm.generation import DecoderSpec
from ingot.llm.kv_cache import CAPACITY_STEP, grow_kv_cache, kv_capacity_for, update_kv_cache
from ingot.llm.runner_decoder import RunnerDecoder
from ingot.llm.sample_text import SAMPLE_TEXTS
from ingot.llm.self_calibration import sampled_texts
from ingot.patches.program_caches import releases_programs
from ingot.patches.version_errors import explains_version_errors
from ingot.result.casting import Casting
from ingot.targets.registry import find_target
from ingot.weight_only.cast_weights import cast_weights
from ingot.weight_only.hessian import ROWS_PER_CHANNEL, HessianRecorder, record_linear_inputs
from ingot.weight_only.options import Weights, weights_from

PREFILL_TOKENS = 32  # prompt tokens per call of the prefill method
VERIFY_TOKENS = 8  # tokens of the first text that verify the decode method, one after the other
# Tokens per call, where the program owns its cache: single tokens cross a border of 32 rows. 0: what the text has left.
VERIFY_WIDTHS = (30, 1, 1, 1, 1, 0, 1, 1)
VERIFY_SHORT = (0, 1)  # of further texts: each call of the quantized graph in eager torch dequantizes all weights
VERIFY_PROMPTS = 4  # texts whose first tokens verify the prefill method: one text would give only two rows of logits
SAMPLE_NOTE = "no --text: calibrated on text that the model itself wrote; representative text gives better quality"


@explains_version_errors
@releases_programs
def cast_decoder(
    checkpoint: Checkpoint,
    *,
    target: str,
    weights: Any,
    context: int | None = None,
    texts: Iterable[str] = (),
    kv_cache: str | None = None,
    **how: Any,
) -> tuple[Casting, DecoderSpec]:
    """The decoder as a program.

    `kv_cache`: who owns it, "program" (one method for any number of tokens, which ExecuTorch's own runners load; the
    default on XNNPACK) or "caller" (a method that decodes one token per call, and a second one for prefill). `texts`
    calibrate the rounding of its weights and verify the result; by default built-in samples do.
    """
    owner = kv_cache_owner(kv_cache, target)
    context = context_for(context, checkpoint.model, owner)
    asked = decoder_weights(weights_from(weights), find_target(target))
    if owner == "program":
        return _cast_for_runners(checkpoint, target, asked, context, texts, how)
    given, chunk = [t for t in texts if t.strip()], min(PREFILL_TOKENS, context)
    tokenized = [tokenize(checkpoint, t) for t in given or SAMPLE_TEXTS]
    decoder = checked_decoder(checkpoint.model, context, tokenized[0], chunk)
    recorded = _record_statistics(decoder, _calibration_texts(decoder, tokenized, bool(given), asked))
    with evict_after_forward(decoder):
        program, batches = _capture(decoder, 1, target), decode_batches(decoder, tokenized[0][:VERIFY_TOKENS])
        prefill = _capture(decoder, chunk, target)
        prompts = [inputs for t in tokenized[:VERIFY_PROMPTS] for inputs in prefill_batches(decoder, t, chunk)]
    recipe = {"caller_owned_inputs": True}  # the KV cache is megabytes
    methods = {"prefill": (prefill, prompts)}
    casting = cast_weights(program, target, asked, batches, recipe, recorded=recorded, other_methods=methods, **how)
    notes = [*casting.notes, *([] if given else [SAMPLE_NOTE]), *_long_context_notes(checkpoint.model, context)]
    stops = _stop_tokens(checkpoint.model, checkpoint.tokenizer)
    spec = DecoderSpec(context, decoder.layers, decoder.heads, stops, chunk, decoder.windows)
    return replace(casting, notes=tuple(notes)), spec


def _cast_for_runners(
    checkpoint: Checkpoint, target: str, asked: Weights, context: int, texts: Iterable[str], how: dict[str, Any]
) -> tuple[Casting, DecoderSpec]:
    given, model = [t for t in texts if t.strip()], checkpoint.model
    tokenized = [tokenize(checkpoint, t) for t in given or SAMPLE_TEXTS]
    with evict_after_forward(model.eval()):
        decoder = RunnerDecoder(model, context).eval()
        _refuse_stacked_weights(model)
        check_runner_decoder(decoder, tokenized[0], PREFILL_TOKENS)
    recorded = _record_statistics(decoder, _calibration_texts(decoder, tokenized, bool(given), asked))
    stops = _stop_tokens(model, checkpoint.tokenizer)
    with evict_after_forward(decoder):
        program = captured_for_runners(decoder, stops)
    batches = [*runner_batches(tokenized[0], context), *last_batches(tokenized[0], context)]
    batches += [b for t in tokenized[1:VERIFY_PROMPTS] for b in runner_batches(t, context, VERIFY_SHORT)]
    recipe, data = {"recover": False}, CheckData([*batches], "calibration")
    casting = cast_weights(program, target, asked, [], recipe, recorded=recorded, checked=data, **how)
    notes = [*casting.notes, *([] if given else [SAMPLE_NOTE]), *_long_context_notes(model, context)]
    spec = DecoderSpec(context, decoder.layers, decoder.heads, stops, 0, decoder.windows, "program")
    return replace(casting, notes=tuple(notes)), spec


def captured_for_runners(decoder: RunnerDecoder, stops: tuple[int, ...]) -> Program:
    """For any number of tokens and rows, up to the context, with the metadata that ExecuTorch's runners ask for."""
    kv = replace(decoder.buffers_of_program, metadata=_metadata(decoder, stops))
    other = max(2, decoder.context // 2 - 1), max(kv.rows - kv.step, kv.step)
    captures = [capture_program(decoder, decoder.example(*sizes)) for sizes in ((decoder.context, kv.rows), other)]
    bounded = {TOKENS: frozenset({1}), POSITIONS: frozenset({0})}
    return replace(with_varying_size(*captures), kv_buffers=kv, bounded_dims=bounded)


def _metadata(decoder: RunnerDecoder, stops: tuple[int, ...]) -> dict[str, Any]:
    """A prompt is never cut: a runner that reads max_seq_len < max_context_len takes the cache for a ring."""
    config = decoder.model.config.get_text_config()
    ids = {"get_eos_ids": list(stops)} if stops else {}  # else the runner takes that of the tokenizer
    if isinstance(bos := getattr(config, "bos_token_id", None), int):
        ids["get_bos_id"] = bos  # type: ignore[assignment]
    lengths = {"get_max_seq_len": decoder.context, "get_max_context_len": decoder.context}
    sizes = {"get_vocab_size": int(config.vocab_size), "get_n_layers": decoder.layers}
    kinds = {"use_kv_cache": True, "enable_dynamic_shape": True, "use_sdpa_with_kv_cache": False}
    return {**lengths, **ids, **sizes, **kinds}


def runner_batches(
    tokens: list[int], context: int, widths: tuple[int, ...] = VERIFY_WIDTHS
) -> list[tuple[torch.Tensor, ...]]:
    """A text as a runner gives it: a prompt, single tokens, a further prompt; up to the end of the context."""
    tokens, made, at = tokens[:context], list[tuple[torch.Tensor, ...]](), 0
    for width in widths:
        part = tokens[at : at + (width or max(len(tokens) - sum(widths), 1))]
        if part:
            made.append((torch.tensor([part]), torch.arange(at, at + len(part))))
        at += len(part)
    return made


def last_batches(tokens: list[int], context: int) -> list[tuple[torch.Tensor, ...]]:
    """A text that fills the context: a prompt, then single tokens at the last positions."""
    filled = repeated(tokens, context)
    prompt = max(context - LAST_SINGLES, 1)
    first = torch.tensor([filled[:prompt]]), torch.arange(prompt)
    return [first, *((torch.tensor([[filled[i]]]), torch.tensor([i])) for i in range(prompt, context))]


def checked_decoder(model: Any, context: int, sample: list[int], chunk: int) -> Decoder:
    """The model as a step with a KV cache, compared with the model itself on a sample."""
    with evict_after_forward(model.eval()):
        decoder = Decoder(model, context).eval()
        _refuse_stacked_weights(model)
        check_decoder(decoder, sample, chunk)
    return decoder


def _refuse_stacked_weights(model: Any) -> None:
    """Mixtures of experts have one weight for all experts, and ops of `transformers` that no runtime has."""
    for name, value in model.named_parameters():
        if value.dim() > 2:
            why = f"its shape is {list(value.shape)}: several matrices, and only linears and embeddings are quantized"
            where = f"{type(model).__name__}, {name}"
            raise InputError("unsupported decoder architecture", where=where, why=why, hint="cast a dense model")


def _record_statistics(decoder: Decoder, texts: list[list[int]]) -> HessianRecorder:
    with record_linear_inputs(decoder) as recorded:
        for tokens in _calibration_windows(decoder, texts):
            decoder.full_forward(tokens)
    trim_heap()
    return recorded


def _calibration_texts(decoder: Decoder, texts: list[list[int]], given: bool, asked: Weights) -> list[list[int]]:
    """The texts that were given, or the sample and what the model writes after pieces of it."""
    if not asked.uses_calibration:
        return []
    return texts if given else [*texts, *sampled_texts(decoder.model, texts, _wanted_rows(decoder), decoder.context)]


def _wanted_rows(decoder: Decoder) -> int:
    """Enough for the widest layer."""
    return ROWS_PER_CHANNEL * max(m.in_features for m in decoder.modules() if isinstance(m, torch.nn.Linear))


def _calibration_windows(decoder: Decoder, texts: list[list[int]]) -> list[list[int]]:
    """Windows of at most the context's length, evenly spaced over the texts: as many tokens as rows are wanted."""
    windows = [t[i : i + decoder.context] for t in texts for i in range(0, len(t), decoder.context)]
    if not windows:
        return []
    share = min(1.0, _wanted_rows(decoder) / sum(map(len, windows)))
    many = min(len(windows), math.ceil(share * len(windows)))
    return [windows[i * len(windows) // many] for i in range(many)]


def _capture(decoder: Decoder, many: int, target: str) -> Program:
    """With a dynamic cache capacity: symbolic, or the upper bound where the delegate resizes itself at run time."""
    if find_target(target).lowering.resizes_at_runtime:
        return replace(capture_program(decoder, decoder.example_inputs(many)), bounded_dims=decoder.capacity_dims)
    dims = decoder.capacity_dims
    capacity = torch.export.Dim("room", min=CAPACITY_STEP, max=decoder.context) if dims else None
    inputs = decoder.cache_input + 2 * decoder.layers
    given: list[Any] = [dict.fromkeys(dims.get(i, ()), capacity) or None for i in range(inputs)]
    shapes = (*given[:STEP_INPUTS], tuple(given[STEP_INPUTS:])) if capacity else None
    return capture_program(decoder, decoder.example_inputs(many), dynamic_shapes=shapes)


def tokenize(checkpoint: Checkpoint, text: str) -> list[int]:
    return list(checkpoint.tokenizer(text)["input_ids"])


def _stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Of the generation config, else of the config; and that of the tokenizer, which ends the turns of a chat."""
    configs = (getattr(model, "generation_config", None), model.config)
    found = next((e for c in configs if (e := getattr(c, "eos_token_id", None)) is not None), ())
    known, own = (found if isinstance(found, (list, tuple)) else (found,)), getattr(tokenizer, "eos_token_id", None)
    return tuple(dict.fromkeys([*known, *([own] if isinstance(own, int) else [])]))


def _long_context_notes(model: Any, context: int) -> list[str]:
    trained = trained_context(model)
    if not trained or context <= trained:
        return []
    return [f"context of {context} tokens: the model was trained on {trained} (max_position_embeddings)"]


def decode_batches(decoder: Decoder, tokens: list[int]) -> list[tuple[torch.Tensor, ...]]:
    """The inputs of the decode method, token by token, with the KV cache of the float model."""
    made, cache = [], decoder.empty_cache(kv_capacity_for(len(tokens), decoder.context))
    with torch.no_grad():
        for i, token in enumerate(tokens[: decoder.context]):
            if i == len(tokens) - 1:  # the last one at full capacity
                cache = grow_kv_cache(cache, decoder.context)
            made.append(decoder.inputs_for([token], [t.clone() for t in cache], i))
            update_kv_cache(cache, decoder(*made[-1])[1:], i)
    return made


def prefill_batches(decoder: Decoder, tokens: list[int], chunk: int) -> list[tuple[torch.Tensor, ...]]:
    """The inputs of the prefill method for a prompt: a full chunk, and a partial chunk after it."""
    cache, first = decoder.empty_cache(kv_capacity_for(chunk, decoder.context)), tokens[:chunk]
    full = decoder.inputs_for(first, [t.clone() for t in cache], 0, chunk)
    rest = tokens[chunk : chunk + max(1, chunk // 2)][: decoder.context - len(first)]
    if len(first) < chunk or not rest:
        return [full]
    with torch.no_grad():
        update_kv_cache(cache, decoder(*full)[1:], 0, chunk)
    grown = grow_kv_cache(cache, kv_capacity_for(chunk + len(rest), decoder.context))
    return [full, decoder.inputs_for(rest, grown, chunk, chunk)]
