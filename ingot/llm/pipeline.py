"""From a checkpoint to a folder that generates text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ingot.capture.export import Program, capture_program
from ingot.core.host_memory import evict_after_forward, trim_heap
from ingot.llm.checkpoint import Checkpoint
from ingot.llm.decoder import BEFORE, ROOM, Decoder, keep, room_for, with_room
from ingot.llm.generation import Shape
from ingot.llm.sample_text import SAMPLE
from ingot.result.casting import Casting
from ingot.targets.registry import find_target
from ingot.weight_only.cast import cast_weights
from ingot.weight_only.hessian import WIDTHS, Moments, watching
from ingot.weight_only.options import weights_from

PREFILL = 32  # tokens of a prompt that are read at once
CHECKED = 8  # tokens of the first text that the program is verified on, one after the other
UNTOLD = "no text was given: rounded and verified on a sample; texts like those it will read (--text) do better"
PROMPTS = 4  # texts whose starts are read as prompts to verify that: of one, two rows of logits would be compared


def cast(
    checkpoint: Checkpoint, *, target: str, weights: Any, context: int = 256, texts: Iterable[str] = (), **how: Any
) -> tuple[Casting, Shape]:
    """The decoder as a program for one token at a time; `texts` say how its weights are rounded best.

    It is verified on them too. Where none are given a sample is better than nothing, by far.
    """
    decoder, given = Decoder(checkpoint.model, context).eval(), [t for t in texts if t.strip()]
    read = [tokens_of(checkpoint, t) for t in given or SAMPLE]
    asked, many = weights_from(weights), min(PREFILL, context)
    seen = _seen(decoder, read if asked.by_data else [])
    with evict_after_forward(decoder):
        program, batches = _captured(decoder, 1, target), steps_of(decoder, read[0][:CHECKED])
        prefill = _captured(decoder, many, target)
        prompts = [inputs for tokens in read[:PROMPTS] for inputs in chunks_of(decoder, tokens, many)]
    recipe = {"caller_owned_inputs": True}  # keys and values are megabytes
    others = {"prefill": (prefill, prompts)}
    casting = cast_weights(program, target, asked, batches, recipe, seen=seen, others=others, **how)
    if not given:
        casting = replace(casting, notes=(*casting.notes, UNTOLD))
    return casting, Shape(context, decoder.layers, decoder.heads, _stops(checkpoint.model), many)


def _seen(decoder: Decoder, texts: list[list[int]]) -> Moments:
    with watching(decoder) as seen:
        for tokens in _enough(decoder, texts):
            decoder.read(tokens)
    trim_heap()
    return seen


def _enough(decoder: Decoder, texts: list[list[int]]) -> list[list[int]]:
    """Windows of the context's length, from all over the texts, for the widest layer to know what it reads."""
    windows = [t[i : i + decoder.context] for t in texts for i in range(0, len(t), decoder.context)]
    widest = max(m.in_features for m in decoder.modules() if isinstance(m, torch.nn.Linear))
    many = min(len(windows), -(-WIDTHS * widest // decoder.context))
    return [windows[i * len(windows) // many] for i in range(many)]


def _captured(decoder: Decoder, many: int, target: str) -> Program:
    """With room that varies: in symbols, or as the largest where the delegate looks at sizes itself."""
    if find_target(target).lowering.resizes_at_runtime:
        return replace(capture_program(decoder, decoder.example(many)), bounded_dims=decoder.room_at)
    room = torch.export.Dim("room", min=ROOM, max=decoder.context) if decoder.room_at else None
    given: list[Any] = [
        dict.fromkeys(decoder.room_at.get(i, ()), room) or None for i in range(BEFORE + 2 * decoder.layers)
    ]
    shapes = (*given[:BEFORE], tuple(given[BEFORE:])) if room else None
    return capture_program(decoder, decoder.example(many), dynamic_shapes=shapes)


def tokens_of(checkpoint: Checkpoint, text: str) -> list[int]:
    return list(checkpoint.tokenizer(text)["input_ids"])


def _stops(model: Any) -> tuple[int, ...]:
    found = getattr(model.generation_config, "eos_token_id", None) or model.config.eos_token_id
    return tuple(found) if isinstance(found, (list, tuple)) else (found,) if found is not None else ()


def steps_of(decoder: Decoder, tokens: list[int]) -> list[tuple[torch.Tensor, ...]]:
    """What the program is called with, token after token, as the float model sees it."""
    made, past = [], decoder.empty(room_for(len(tokens), decoder.context))
    with torch.no_grad():
        for i, token in enumerate(tokens[: decoder.context]):
            if i == len(tokens) - 1:  # with as much room as there ever is
                past = with_room(past, decoder.context)
            made.append(decoder.given([token], [p.clone() for p in past], i))
            keep(past, decoder(*made[-1])[1:], i)
    return made


def chunks_of(decoder: Decoder, tokens: list[int], many: int) -> list[tuple[torch.Tensor, ...]]:
    """What the program is called with to read a prompt: one full stride, and one after it that is not."""
    past, first = decoder.empty(room_for(many, decoder.context)), tokens[:many]
    given = decoder.given(first, [p.clone() for p in past], 0, many)
    rest = tokens[many : many + max(1, many // 2)][: decoder.context - len(first)]
    if len(first) < many or not rest:
        return [given]
    with torch.no_grad():
        keep(past, decoder(*given)[1:], 0, many)
    more = with_room(past, room_for(many + len(rest), decoder.context))
    return [given, decoder.given(rest, more, many, many)]
