"""The caller's side of a decoder step: the KV cache, and the inputs of the next tokens.

Keys are heads x size x tokens, the layout in which scores read them; values are heads x tokens x size. The capacity of
the cache may vary from call to call, so that a short text costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MASKED = -1e9  # added to the scores of cache positions that are empty, in the future, or before the window
CAPACITY_STEP = 32  # tokens by which the cache grows: a new capacity makes the runtime resize all shapes
WHOLE_TEXT = (0,)  # the windows of a decoder whose layers all attend to every earlier token


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


def step_inputs(
    tokens: Sequence[int],
    position: int,
    width: int,
    heads: KVHeads,
    capacity: int,
    windows: Sequence[int] = WHOLE_TEXT,
) -> tuple[Tensor, ...]:
    """Tokens, positions, mask, places and further masks of up to `width` new tokens after `position` cached ones.

    Tokens are padded on the left, so that the last logits are those of the last token. Padding has no cache position,
    and masks hide it. There is one mask per window: with a window of n, a token sees itself and n - 1 tokens before it.
    """
    many, end = len(tokens), position + len(tokens)
    places, positions = torch.zeros(heads.many, width, capacity), torch.zeros(width, dtype=torch.long)
    places[:, -many:, position:end] = torch.eye(many)
    positions[-many:] = torch.arange(position, end)
    first, *more = (_mask(many, position, width, capacity, w).repeat(1, heads.sharing, 1) for w in windows)
    return torch.tensor([[0] * (width - many) + list(tokens)]), positions, first, places, *more


def _mask(many: int, position: int, width: int, capacity: int, window: int) -> Tensor:
    """A row per token; 0 where it sees a cache position. A window of 0 has no limit."""
    mask, end = torch.full((1, width, capacity), MASKED), position + many
    mask[:, -many:, :end] = torch.full((many, end), MASKED).triu(position + 1)
    if window:
        mask[:, -many:, :end] += torch.full((many, end), MASKED).tril(position - window)
    return mask
