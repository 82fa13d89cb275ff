"""A causal language model of `transformers` as one step: tokens and what came before in, logits and what is new out.

Keys and values of the tokens before are inputs, those of the new ones are outputs: who calls the program keeps them. So
nothing is written inside, a delegate never ends for a cache, and attention never copies what it has: scores over the
old and the new are made apart and meet in one softmax. Keys lie as heads x size x tokens, the way scores read them,
values as heads x tokens x size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from ingot.errors import InputError
from ingot.llm.library import transformers

Past = list[tuple[Tensor, Tensor]]
HIDDEN = -1e9  # added to the scores of places that hold nothing yet
_step: ContextVar[Step] = ContextVar("ingot_step")


def empty_past(layers: int, heads: int, size: int, context: int) -> list[Tensor]:
    """Keys and values of each layer before the first token."""
    shapes = ((heads, size, context), (heads, context, size))
    return [torch.zeros(shape) for _ in range(layers) for shape in shapes]


def keep(past: list[Tensor], new: Sequence[Tensor], position: int, many: int = 1) -> None:
    """Write what the last `many` tokens add, from `position` on. By numpy: at each token, and torch takes longer."""
    places, last = slice(position, position + many), slice(-many, None)
    for i, (kept, made) in enumerate(zip(past, new, strict=True)):
        if i % 2:
            kept.numpy()[:, places] = made.numpy()[:, last]
        else:
            kept.numpy()[:, :, places] = made.numpy()[:, :, last]


def aligned(tokens: Sequence[int], position: int, width: int, context: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, places and mask for up to `width` new tokens after `position` old ones.

    They stand at the right end, so that the last one's logits are asked for; what fills up on the left sees itself
    alone, and nothing sees it.
    """
    many = len(tokens)
    mask = torch.full((1, 1, width, context + width), HIDDEN)
    mask[..., context:].diagonal(dim1=-2, dim2=-1).zero_()
    mask[..., -many:, :position] = 0
    mask[..., -many:, context + width - many :] = torch.full((many, many), HIDDEN).triu(1)
    places = torch.zeros(width, dtype=torch.long)
    places[-many:] = torch.arange(position, position + many)
    return torch.tensor([[0] * (width - many) + list(tokens)]), places, mask


class Step:
    """Of one forward: what each layer has from before, and what it adds. Stands in for the cache of `transformers`."""

    is_compileable, is_sliding = False, [False]

    def __init__(self, positions: Tensor, past: Past) -> None:
        self.positions, self.past, self.new = positions, past, Past()

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.new.append((key[0].transpose(1, 2), value[0]))
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return int(self.past[0][1].shape[1])


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Heads that share keys are one batch with more rows."""
    old_keys, old_values = _step.get().past[module.layer_idx]  # type: ignore[index]
    heads, many, size = key.shape[1], query.shape[2], query.shape[3]
    q = (query * scaling).reshape(heads, -1, size)
    scores = torch.cat([torch.bmm(q, old_keys), torch.bmm(q, key[0].transpose(1, 2))], -1)
    scores = (scores.view(query.shape[1], many, -1) + mask[0]).view(heads, -1, scores.shape[-1])
    shares = torch.softmax(scores, -1)
    length = old_values.shape[1]
    made = torch.bmm(shares[..., :length], old_values) + torch.bmm(shares[..., length:], value[0])
    return made.view(1, query.shape[1], many, size).transpose(1, 2), None


class Places(nn.Module):
    """Rotary embeddings looked up instead of computed: cosines have no kernel in most backends."""

    def __init__(self, rotary: nn.Module, context: int, dtype: torch.dtype) -> None:
        super().__init__()
        with torch.no_grad():
            cos, sin = rotary(torch.zeros(1, dtype=dtype), torch.arange(context)[None])
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (torch.index_select(t, 0, _step.get().positions)[None] for t in self.buffers())
        return cos, sin


def _refuse_strange(model: Any) -> None:
    if not hasattr(getattr(model, "model", None), "rotary_emb"):
        why = f"{type(model).__name__} has no rotary embeddings where Llama, Qwen and Gemma have them"
        raise InputError(
            "this architecture is not known here", why=why, hint="cast it as any other net: weights='8da4w'"
        )


class Decoder(nn.Module):
    """forward(tokens, positions, mask, keys and values by layer) -> logits of the last token, new keys and values."""

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        _refuse_strange(model)
        transformers().AttentionInterface.register("ingot", attend)
        self.model, self.context, config = model, context, model.config
        self.layers, self.heads = config.num_hidden_layers, config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.places = Places(model.model.rotary_emb, context, model.dtype)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        step = Step(positions, list(zip(past[::2], past[1::2], strict=True)))
        with self._taken_over(step):
            made = self.model(
                input_ids=tokens,
                position_ids=positions[None],
                attention_mask=mask,
                past_key_values=step,
                logits_to_keep=1,
            )
        return made.logits[0], *(t for pair in step.new for t in pair)

    @contextmanager
    def _taken_over(self, step: Step) -> Iterator[None]:
        """The user's model with our attention and rotary tables, for one forward."""
        inner, config = self.model.model, self.model.config
        before, rotary, token = config._attn_implementation, inner.rotary_emb, _step.set(step)
        config._attn_implementation, inner.rotary_emb = "ingot", self.places
        try:
            yield
        finally:
            config._attn_implementation, inner.rotary_emb = before, rotary
            _step.reset(token)

    def whole(self, tokens: list[int]) -> tuple[Tensor, ...]:
        """Inputs for a text at once, with nothing before it."""
        many = min(len(tokens), self.context)
        mask, past = torch.full((1, 1, many, many), HIDDEN).triu(1), empty_past(self.layers, self.heads, self.size, 0)
        return torch.tensor([tokens[:many]]), torch.arange(many), mask, *past

    def example(self, many: int) -> tuple[Tensor, ...]:
        """Inputs for `many` new tokens."""
        mask = torch.zeros(1, 1, many, self.context + many)
        past = empty_past(self.layers, self.heads, self.size, self.context)
        return torch.zeros(1, many, dtype=torch.long), torch.arange(many), mask, *past
