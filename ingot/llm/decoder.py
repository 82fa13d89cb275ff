"""A causal language model of `transformers` as one exportable step: tokens and KV cache in, logits and new KV out.

The caller owns the KV cache: cached keys and values are inputs, those of the new tokens are outputs. So the program
has no mutable state that would split the delegate, and attention never copies the cache: scores of the new tokens are
added at their future cache positions, among those of the cached ones. Keys are heads x size x tokens, the layout in
which scores read them; values are heads x tokens x size. The capacity of the cache may vary from call to call, so that
a short text costs little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ingot.errors import InputError
from ingot.llm.hf_imports import import_transformers

KeysAndValues = list[tuple[Tensor, Tensor]]
MASKED = -1e9  # added to the scores of cache positions that are empty or in the future
CACHE_INPUT = 4  # index of the first cache input, after tokens, positions, mask and places
CAPACITY_STEP = 32  # tokens by which the cache grows: a new capacity makes the runtime resize all shapes
CALIBRATION_LOGITS = 64  # tokens at the end of a calibration text whose logits are computed
_step: ContextVar[StepCache] = ContextVar("ingot_step")


@dataclass(frozen=True)
class KVHeads:
    """Heads of keys and values: their number, how many query heads share each, and their size."""

    many: int
    sharing: int
    size: int


def empty_kv_cache(layers: int, heads: KVHeads, capacity: int) -> list[Tensor]:
    """Keys and values of each layer before the first token."""
    shapes = ((heads.many, heads.size, capacity), (heads.many, capacity, heads.size))
    return [torch.zeros(shape) for _ in range(layers) for shape in shapes]


def grow_kv_cache(cache: list[Tensor], capacity: int) -> list[Tensor]:
    """The same keys and values, padded to a larger capacity."""
    padding = [
        (0, capacity - t.shape[-1]) if i % 2 == 0 else (0, 0, 0, capacity - t.shape[1]) for i, t in enumerate(cache)
    ]
    return [nn.functional.pad(t, more) for t, more in zip(cache, padding, strict=True)]


def kv_capacity_for(tokens: int, context: int) -> int:
    """The smallest capacity that holds this many tokens."""
    return min(context, -(-tokens // CAPACITY_STEP) * CAPACITY_STEP)


def update_kv_cache(cache: list[Tensor], new: Sequence[Tensor], position: int, many: int = 1) -> None:
    """Write the keys and values of the last `many` tokens at `position`. By numpy: per token, torch is slower."""
    written, last = slice(position, position + many), slice(-many, None)
    for i, (kept, made) in enumerate(zip(cache, new, strict=True)):
        if i % 2:
            kept.numpy()[:, written] = made.numpy()[:, last]
        else:
            kept.numpy()[:, :, written] = made.numpy()[:, :, last]


def step_inputs(tokens: Sequence[int], position: int, width: int, heads: KVHeads, capacity: int) -> tuple[Tensor, ...]:
    """Tokens, positions, mask and places of up to `width` new tokens after `position` cached ones.

    Tokens are padded on the left, so that the last logits are those of the last token. Padding has no cache position,
    and the mask hides it.
    """
    many, end = len(tokens), position + len(tokens)
    mask, places = torch.full((1, width, capacity), MASKED), torch.zeros(heads.many, width, capacity)
    mask[:, -many:, :end] = torch.full((many, end), MASKED).triu(position + 1)
    places[:, -many:, position:end] = torch.eye(many)
    positions = torch.zeros(width, dtype=torch.long)
    positions[-many:] = torch.arange(position, end)
    return torch.tensor([[0] * (width - many) + list(tokens)]), positions, mask.repeat(1, heads.sharing, 1), places


class StepCache:
    """The KV cache of one forward, with the interface of `transformers`: cached keys and values, and the new ones."""

    is_compileable, is_sliding = False, [False]

    def __init__(self, positions: Tensor, places: Tensor, cached: KeysAndValues) -> None:
        self.positions, self.places, self.cached, self.new = positions, places, cached, KeysAndValues()

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.new.append((key[0].transpose(1, 2), value[0]))
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0  # only read where positions are not given


def cached_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Grouped-query attention over cached and new keys; query heads that share keys are rows of one batch."""
    step, (heads, many, size) = _step.get(), key.shape[1:]
    cached_keys, cached_values = step.cached[module.layer_idx]  # type: ignore[index]
    q = (query * scaling).reshape(heads, -1, size)
    new_scores = _matmul(torch.bmm(q, key[0].transpose(1, 2)), step.places)
    weights = torch.softmax(torch.bmm(q, cached_keys) + new_scores + mask[0], -1)
    new_weights = torch.bmm(weights, step.places.transpose(1, 2))
    made = torch.bmm(weights, cached_values) + _matmul(new_weights, value[0])
    return made.view(1, query.shape[1], many, size).transpose(1, 2), None


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product; an outer product is faster as a broadcast multiplication."""
    return a * b if a.shape[-1] == 1 else torch.bmm(a, b)


class RotaryTable(nn.Module):
    """Rotary embeddings as a lookup table: most backends have no kernel for cosines."""

    def __init__(self, rotary: nn.Module, context: int, dtype: torch.dtype) -> None:
        super().__init__()
        with torch.no_grad():
            cos, sin = rotary(torch.zeros(1, dtype=dtype), torch.arange(context)[None])
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (torch.index_select(t, 0, _step.get().positions)[None] for t in self.buffers())
        return cos, sin


def _refuse_unsupported(model: Any) -> None:
    if not hasattr(getattr(model, "model", None), "rotary_emb"):
        why = f"{type(model).__name__} has no rotary embeddings at model.rotary_emb, as Llama, Qwen and Gemma have"
        raise InputError(
            "unsupported decoder architecture", why=why, hint="cast it as a plain model with weights='8da4w'"
        )


class Decoder(nn.Module):
    """forward(tokens, positions, mask, places, keys and values by layer) -> last logits, new keys and values.

    The mask has a column per cache position, and a row per new token and query head of a key. `places` is one-hot: the
    cache position of each new token, per head of keys.
    """

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        _refuse_unsupported(model)
        import_transformers().AttentionInterface.register("ingot", cached_attention)
        self.model, self.context, config = model, context, model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        many = config.num_key_value_heads
        self.layers, self.heads = config.num_hidden_layers, KVHeads(many, config.num_attention_heads // many, size)
        # The attribute's name is part of plan fingerprints and reports.
        self.places = RotaryTable(model.model.rotary_emb, context, model.dtype)

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, places: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        step = StepCache(positions, places, list(zip(past[::2], past[1::2], strict=True)))
        with self._patched_model(step):
            made = self.model(
                input_ids=tokens,
                position_ids=positions[None],
                attention_mask=mask[None],  # four dimensions: transformers uses it unchanged
                past_key_values=step,
                logits_to_keep=1,
            )
        return made.logits[0], *(t for pair in step.new for t in pair)

    def full_forward(self, tokens: list[int]) -> Tensor:
        """A whole text in one forward, by the model's own attention, which is twice as fast; logits of the last tokens.

        More than one token has logits, so that the head gets enough calibration rows.
        """
        ids = torch.tensor([tokens])
        made: Tensor = self.model(input_ids=ids, logits_to_keep=CALIBRATION_LOGITS, use_cache=False).logits[0]
        return made

    @contextmanager
    def _patched_model(self, step: StepCache) -> Iterator[None]:
        """The user's model with our attention and rotary table, for one forward."""
        inner, config = self.model.model, self.model.config
        before, rotary, token = config._attn_implementation, inner.rotary_emb, _step.set(step)
        config._attn_implementation, inner.rotary_emb = "ingot", self.places
        try:
            yield
        finally:
            config._attn_implementation, inner.rotary_emb = before, rotary
            _step.reset(token)

    def example_inputs(self, many: int) -> tuple[Tensor, ...]:
        """Inputs of `many` new tokens, with a cache of full capacity."""
        return self.inputs_for([0] * many, self.empty_cache(self.context), 0)

    def inputs_for(self, tokens: list[int], cache: list[Tensor], position: int, width: int = 0) -> tuple[Tensor, ...]:
        """Inputs of some tokens after `position` cached ones, padded to `width`."""
        return *step_inputs(tokens, position, width or len(tokens), self.heads, cache[0].shape[-1]), *cache

    def empty_cache(self, capacity: int) -> list[Tensor]:
        return empty_kv_cache(self.layers, self.heads, capacity)

    @property
    def capacity_dims(self) -> dict[int, frozenset[int]]:
        """By input, the dimensions that are as long as the cache; none where the capacity is fixed."""
        if self.context <= CAPACITY_STEP:
            return {}
        cache = {CACHE_INPUT + i: 1 + (i + 1) % 2 for i in range(2 * self.layers)}
        return {i: frozenset({d}) for i, d in {2: 2, 3: 2, **cache}.items()}
