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

from ingot.errors import InputError
from ingot.llm.kv_cache import MASKED, KVHeads

KeysAndValues = tuple[Tensor, Tensor]
HeadRows = tuple[Sequence[Tensor], Sequence[Tensor]]  # cached keys and values of a layer, by head: 1 x rows x size
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


class PrefixStep(StepCache):
    """The KV cache of one forward of a program that owns it: for each head, the rows that are in use.

    Only sizes of the inputs vary with the text, and all masks are computed from positions and columns (0, 1, 2 … as
    float, as many as there are rows). Rows from the first new position on may hold anything finite: `old` is 0 there.
    """

    def __init__(self, positions: Tensor, columns: Tensor, heads: KVHeads, cached: Mapping[int, HeadRows]) -> None:
        self.positions, self.rows_of, self.new = positions, cached, dict[int, KeysAndValues]()
        at, each = positions.to(torch.float32), torch.ones(heads.many, 1, 1)
        row, rows = at.view(1, 1, -1), at.view(1, -1, 1)
        self.distance = (row + torch.zeros(1, heads.sharing, 1)).view(1, -1, 1) - columns
        self.places = _one_hot(rows - columns) * each
        self.places_transposed = _one_hot(columns.view(1, -1, 1) - row) * each
        self.old = torch.clamp(rows.narrow(1, 0, 1) - columns, 0.0, 1.0)
        # One-hot: the last token. Positions rise, so that it has the highest.
        highest = torch.amax(positions, 0, keepdim=True).to(torch.float32).view(1, 1, 1)
        self.last = torch.clamp(row - highest + 1.0, 0.0, 1.0)
        self.masks = dict[int, Tensor]()

    def mask(self, window: int) -> Tensor:
        """0 where a token sees a row, itself included; a window of 0 has no limit."""
        seen = torch.clamp(self.distance * -MASKED, MASKED, 0.0)
        return seen + torch.clamp((window - 1.0 - self.distance) * -MASKED, MASKED, 0.0) if window else seen

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysAndValues:
        self.new[layer_idx] = (key[0], value[0])
        return key, value


def _one_hot(distance: Tensor) -> Tensor:
    """1 where integers are 0."""
    return torch.clamp(1.0 - distance.abs(), 0.0, 1.0)


def concatenated(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenated, at most five at a time: XNNPACK has no kernel for more."""
    while len(parts) > 1:
        parts = [
            torch.cat([*parts[i : i + 5]], dim) if parts[i + 1 : i + 2] else parts[i] for i in range(0, len(parts), 5)
        ]
    return parts[0]


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
    q = (query * (size**-0.5 if scaling is None else scaling)).reshape(heads, -1, size)
    if isinstance(step, PrefixStep):
        made = _prefix_attention(step, layer, q, (key[0], value[0]), softcap, s_aux)
        return made.view(1, query.shape[1], many, size).transpose(1, 2), None
    cached_keys, cached_values = step.cached[layer]
    new_scores = _matmul(torch.bmm(q, key[0].transpose(1, 2)), step.places)
    scores = _softcapped(torch.bmm(q, cached_keys) + new_scores, softcap) + step.masks[layer]
    weights = torch.softmax(scores, -1) if s_aux is None else _softmax_with_sinks(scores, s_aux, many)
    new_weights = torch.bmm(weights, step.places.transpose(1, 2))
    made = torch.bmm(weights, cached_values) + _matmul(new_weights, value[0])
    return made.view(1, query.shape[1], many, size).transpose(1, 2), None


def _prefix_attention(
    step: PrefixStep, layer: int, q: Tensor, new: KeysAndValues, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Cached rows head by head, where they lie; all the rest for all heads at once."""
    if sinks is not None:
        why = "attention sinks have no form in which the program owns the KV cache"
        raise InputError("unsupported decoder architecture", where=f"layer {layer}", why=why, hint="kv_cache='caller'")
    (keys, values), (key, value) = step.rows_of[layer], new
    cached = concatenated([torch.bmm(q[h : h + 1], k.transpose(1, 2)) for h, k in enumerate(keys)], 0)
    scores = cached * step.old + torch.bmm(torch.bmm(q, key.transpose(1, 2)), step.places)
    weights = torch.softmax(_softcapped(scores, softcap) + step.masks[layer], -1)
    old = weights * step.old
    made = concatenated([torch.bmm(old[h : h + 1], v) for h, v in enumerate(values)], 0)
    return made + torch.bmm(torch.bmm(weights, step.places_transposed), value)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product; an outer product is faster as a broadcast multiplication."""
    return a * b if a.shape[-1] == 1 else torch.bmm(a, b)


def _softcapped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _softmax_with_sinks(scores: Tensor, sinks: Tensor, many: int) -> Tensor:
    """A learned score per query head takes part in the softmax and has no value."""
    column = sinks.reshape(scores.shape[0], -1, 1).repeat_interleave(many, 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
