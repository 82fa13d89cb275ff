"""Attention of an encoder in the form that stays in one delegate when the number of tokens varies.

A reshape infers one size, so scores are heads x tokens x tokens from the start, and a mask of padding alone is one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from ingot.llm.attention_probe import attention_implementation
from ingot.llm.hf_imports import import_transformers
from ingot.llm.kv_cache import MASKED

ENCODER_ATTENTION = "ingot_encoder"
_calls: ContextVar[list[nn.Module]] = ContextVar("ingot_encoder_calls")


@contextmanager
def encoder_attention(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The model with this attention, where it asks `transformers` for one; the modules that did, as they are called."""
    transformers = import_transformers()
    transformers.AttentionInterface.register(ENCODER_ATTENTION, masked_attention)
    transformers.AttentionMaskInterface.register(ENCODER_ATTENTION, additive_mask)
    calls = list[nn.Module]()
    token = _calls.set(calls)
    try:
        with attention_implementation(model, ENCODER_ATTENTION):
            yield calls
    finally:
        _calls.reset(token)


def additive_mask(
    q_length: int, kv_length: int, mask_function: Callable[..., Any], attention_mask: Tensor | None = None, **_: Any
) -> Tensor | None:
    """0 where a token sees another: 1 x 1 x 1 x tokens, or 1 x 1 x tokens x tokens where that depends on positions."""
    padding = None if attention_mask is None else ((1.0 - attention_mask.float()) * MASKED)[:, None, None]
    if _sees_all(mask_function):
        return padding
    rows, columns = torch.arange(q_length)[:, None], torch.arange(kv_length)[None]
    seen = mask_function(torch.tensor(0), torch.tensor(0), rows, columns)
    limits = ((1.0 - seen.float()) * MASKED)[None, None]
    return limits if padding is None else limits + padding


def _sees_all(mask_function: Callable[..., Any]) -> bool:
    from transformers.masking_utils import bidirectional_mask_function

    return mask_function is bidirectional_mask_function


def masked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """One text; query heads that share keys are rows of one product. What it ignores, the float check finds."""
    heads, size, many = query.shape[1], query.shape[3], key.shape[1]
    _calls.get().append(module)
    scaled = query[0] * (size**-0.5 if scaling is None else scaling)
    q = scaled if heads == many else scaled.contiguous().view(many, -1, size)
    scores = torch.bmm(q, key[0].transpose(1, 2))
    if attention_mask is not None:
        scores = scores + _for_shared_heads(attention_mask[0], heads // many)
    made = torch.bmm(torch.softmax(scores, -1), value[0])
    return (made if heads == many else made.view(heads, -1, value.shape[3])).transpose(0, 1)[None], None


def _for_shared_heads(mask: Tensor, sharing: int) -> Tensor:
    return mask if mask.shape[1] == 1 or sharing == 1 else torch.cat([mask] * sharing, 1)
