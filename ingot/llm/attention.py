"""Attention over a KV cache that the caller owns, in place of the attention of `transformers`.

Attention never copies the cache: scores of the new tokens are added at their future cache positions, among those of
the cached ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

KeysAndValues = tuple[Tensor, Tensor]
# Keywords of an attention call that `cached_attention` computes, or that only kernels other than eager attention read.
# Any other is refused: see `attention_probe`.
KNOWN_OPTIONS = frozenset(
    {"scaling", "softcap", "s_aux", "sliding_window", "dropout", "is_causal", "output_attentions"}
)
PLAIN_MODEL = "cast it as a plain model with weights='8da4w'"  # the hint where a decoder is refused
_step: ContextVar[StepCache] = ContextVar("ingot_step")


class StepCache:
    """The KV cache of one forward, with the interface of `transformers`; and what attention reads beside it."""

    is_compileable, is_sliding = False, [False]

    def __init__(
        self,
        layers: Sequence[int],
        positions: Tensor,
        places: Tensor,
        masks: Mapping[int, Tensor],
        cached: Sequence[KeysAndValues],
    ) -> None:
        """`masks` and the cached keys and values are by layer: some layers may have no attention."""
        self.positions, self.places, self.masks = positions, places, masks
        self.cached, self.new = dict(zip(layers, cached, strict=True)), dict[int, KeysAndValues]()

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        self.new[layer_idx] = (key[0].transpose(1, 2), value[0])
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0  # only read where positions are not given


@contextmanager
def current_step(step: StepCache) -> Iterator[None]:
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def current_positions() -> Tensor:
    return _step.get().positions


def cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention over cached and new keys; query heads that share keys are rows of one batch."""
    step, layer, (heads, many, size) = _step.get(), int(module.layer_idx), key.shape[1:]  # type: ignore[arg-type]
    cached_keys, cached_values = step.cached[layer]
    q = (query * (size**-0.5 if scaling is None else scaling)).reshape(heads, -1, size)
    new_scores = _matmul(torch.bmm(q, key[0].transpose(1, 2)), step.places)
    scores = _softcapped(torch.bmm(q, cached_keys) + new_scores, softcap) + step.masks[layer]
    weights = torch.softmax(scores, -1) if s_aux is None else _softmax_with_sinks(scores, s_aux, many)
    new_weights = torch.bmm(weights, step.places.transpose(1, 2))
    made = torch.bmm(weights, cached_values) + _matmul(new_weights, value[0])
    return made.view(1, query.shape[1], many, size).transpose(1, 2), None


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product; an outer product is faster as a broadcast multiplication."""
    return a * b if a.shape[-1] == 1 else torch.bmm(a, b)


def _softcapped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _softmax_with_sinks(scores: Tensor, sinks: Tensor, many: int) -> Tensor:
    """A learned score per query head takes part in the softmax and has no value."""
    column = sinks.reshape(scores.shape[0], -1, 1).repeat_interleave(many, 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
