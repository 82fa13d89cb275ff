"""What a cast of a decoder does where its options say nothing: who owns the KV cache, the context, bits of weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ingot.errors import InputError
from ingot.targets.base import Target
from ingot.targets.registry import find_target
from ingot.weight_only.options import Weights

KV_CACHE_OWNERS = ("program", "caller")
MOST_DEFAULT_CONTEXT = 512  # tokens; a program that owns its KV cache holds memory for all of them
CALLER_CONTEXT = 256  # where the caller owns the cache
INT8_BUDGET = 0.02  # of the fewest bytes: enough for the keys and values of a small decoder, which gain most


def kv_cache_owner(asked: str | None, target: str) -> str:
    """XNNPACK's delegate resizes itself at run time and reads a cache where it lies; others are not known to."""
    able = find_target(target).name == "xnnpack"
    owner = asked or ("program" if able else "caller")
    if owner not in KV_CACHE_OWNERS:
        raise InputError(f"unknown kv_cache {owner!r}", hint=f"one of {', '.join(KV_CACHE_OWNERS)}")
    if owner == "program" and not able:
        why = f"only the XNNPACK delegate is known to read it there, not that of {target}"
        raise InputError("the program cannot own the KV cache", why=why, hint="kv_cache='caller'")
    return owner


def context_for(asked: int | None, model: Any, owner: str) -> int:
    """The length that the model was trained on, up to a limit that fits in the memory of a phone."""
    if asked is not None:
        return asked
    if owner == "caller":
        return CALLER_CONTEXT
    trained = trained_context(model)
    return min(MOST_DEFAULT_CONTEXT, trained) if trained else MOST_DEFAULT_CONTEXT


def trained_context(model: Any) -> int:
    """0 where the config does not say."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else 0


def decoder_weights(asked: Weights, target: Target) -> Weights:
    """Four bits for the embedding, which is a lookup; the bytes that this saves buy int8 where it helps most.

    Only with a scheme of four bits, where the kernels have both widths, and where nothing else was asked for.
    """
    if asked.spec.bits != 4 or {4, 8} - {*target.weight_only.bits}:
        return asked
    chosen = replace(asked, embedding_bits=asked.embedding_bits or 4)
    unset = chosen.most_bytes is None and chosen.int8_budget is None
    return replace(chosen, int8_budget=INT8_BUDGET) if unset else chosen
