"""A causal language model of `transformers` as one step: tokens and what came before in, logits and what is new out.

Keys and values of the tokens before are inputs, those of the new ones are outputs: who calls the program keeps them. So
nothing is written inside, a delegate never ends for a cache, and attention never copies what it has: scores of the new
tokens are put where their keys will be kept, among those of the old. Keys lie as heads x size x tokens, the way scores
read them, values as heads x tokens x size. How many tokens there is room for may vary from call to call: a short text
costs little.
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
from ingot.llm.hf_library import transformers

Past = list[tuple[Tensor, Tensor]]
HIDDEN = -1e9  # added to the scores of places that hold nothing yet
BEFORE = 4  # inputs before keys and values: tokens, positions, mask, places
ROOM = 32  # tokens that there is room for grow by this many: all shapes are looked at anew each time
LAST = 64  # tokens of a text that is read whose logits are computed
_step: ContextVar[Step] = ContextVar("ingot_step")


@dataclass(frozen=True)
class Heads:
    """Of keys and values, and how many queries share each."""

    many: int
    sharing: int
    size: int


def empty_past(layers: int, heads: Heads, room: int) -> list[Tensor]:
    """Keys and values of each layer before the first token."""
    shapes = ((heads.many, heads.size, room), (heads.many, room, heads.size))
    return [torch.zeros(shape) for _ in range(layers) for shape in shapes]


def with_room(past: list[Tensor], room: int) -> list[Tensor]:
    """The same keys and values where there is room for more."""
    grown = [(0, room - t.shape[-1]) if i % 2 == 0 else (0, 0, 0, room - t.shape[1]) for i, t in enumerate(past)]
    return [nn.functional.pad(t, more) for t, more in zip(past, grown, strict=True)]


def room_for(tokens: int, context: int) -> int:
    return min(context, -(-tokens // ROOM) * ROOM)


def keep(past: list[Tensor], new: Sequence[Tensor], position: int, many: int = 1) -> None:
    """Write what the last `many` tokens add, from `position` on. By numpy: at each token, and torch takes longer."""
    places, last = slice(position, position + many), slice(-many, None)
    for i, (kept, made) in enumerate(zip(past, new, strict=True)):
        if i % 2:
            kept.numpy()[:, places] = made.numpy()[:, last]
        else:
            kept.numpy()[:, :, places] = made.numpy()[:, :, last]


def aligned(tokens: Sequence[int], position: int, width: int, heads: Heads, room: int) -> tuple[Tensor, ...]:
    """Tokens, positions, mask and places for up to `width` new tokens after `position` old ones.

    They stand at the right end, so that the last one's logits are asked for; what fills up on the left has no place,
    and nothing sees it.
    """
    many, end = len(tokens), position + len(tokens)
    mask, places = torch.full((1, width, room), HIDDEN), torch.zeros(heads.many, width, room)
    mask[:, -many:, :end] = torch.full((many, end), HIDDEN).triu(position + 1)
    places[:, -many:, position:end] = torch.eye(many)
    positions = torch.zeros(width, dtype=torch.long)
    positions[-many:] = torch.arange(position, end)
    return torch.tensor([[0] * (width - many) + list(tokens)]), positions, mask.repeat(1, heads.sharing, 1), places


class Step:
    """Of one forward: what each layer has from before, and what it adds. Stands in for the cache of `transformers`."""

    is_compileable, is_sliding = False, [False]

    def __init__(self, positions: Tensor, places: Tensor, past: Past) -> None:
        self.positions, self.places, self.past, self.new = positions, places, past, Past()

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.new.append((key[0].transpose(1, 2), value[0]))
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0  # asked for where positions are not given


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Heads that share keys are one batch with more rows."""
    step, (heads, many, size) = _step.get(), key.shape[1:]
    old_keys, old_values = step.past[module.layer_idx]  # type: ignore[index]
    q = (query * scaling).reshape(heads, -1, size)
    own = _product(torch.bmm(q, key[0].transpose(1, 2)), step.places)
    shares = torch.softmax(torch.bmm(q, old_keys) + own + mask[0], -1)
    new_shares = torch.bmm(shares, step.places.transpose(1, 2))
    made = torch.bmm(shares, old_values) + _product(new_shares, value[0])
    return made.view(1, query.shape[1], many, size).transpose(1, 2), None


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Of matrices; of a column and a row it is quicker number by number."""
    return a * b if a.shape[-1] == 1 else torch.bmm(a, b)


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
    """forward(tokens, positions, mask, places, keys and values by layer) -> last logits, new keys and values.

    A mask has a column for each token that there is room for and a row for each new one, as often as queries share a
    key. `places` has a one where a new token will be kept, for each head of keys.
    """

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        _refuse_strange(model)
        transformers().AttentionInterface.register("ingot", attend)
        self.model, self.context, config = model, context, model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        many = config.num_key_value_heads
        self.layers, self.heads = config.num_hidden_layers, Heads(many, config.num_attention_heads // many, size)
        self.places = Places(model.model.rotary_emb, context, model.dtype)

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, places: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        step = Step(positions, places, list(zip(past[::2], past[1::2], strict=True)))
        with self._taken_over(step):
            made = self.model(
                input_ids=tokens,
                position_ids=positions[None],
                attention_mask=mask[None],  # of four dimensions: none is made
                past_key_values=step,
                logits_to_keep=1,
            )
        return made.logits[0], *(t for pair in step.new for t in pair)

    def read(self, tokens: list[int]) -> Tensor:
        """A text at once, by the model's own attention, which takes half the time; logits of its last tokens.

        Of more than one: a head has more columns than a few texts have ends.
        """
        made: Tensor = self.model(input_ids=torch.tensor([tokens]), logits_to_keep=LAST, use_cache=False).logits[0]
        return made

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

    def example(self, many: int) -> tuple[Tensor, ...]:
        """Inputs for `many` new tokens, in a program with as much room as it will ever have."""
        return self.given([0] * many, self.empty(self.context), 0)

    def given(self, tokens: list[int], past: list[Tensor], position: int, width: int = 0) -> tuple[Tensor, ...]:
        """Inputs for some tokens after others, `width` of them at once."""
        return *aligned(tokens, position, width or len(tokens), self.heads, past[0].shape[-1]), *past

    def empty(self, room: int) -> list[Tensor]:
        return empty_past(self.layers, self.heads, room)

    @property
    def room_at(self) -> dict[int, frozenset[int]]:
        """By input, the dimensions that are as long as there is room; none where that never grows."""
        if self.context <= ROOM:
            return {}
        past = {BEFORE + i: 1 + (i + 1) % 2 for i in range(2 * self.layers)}
        return {i: frozenset({d}) for i, d in {2: 2, 3: 2, **past}.items()}
