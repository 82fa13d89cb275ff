"""Hidden states of tokens to one vector: the modules that sentence-transformers puts after an encoder.

A pooling that is a weighted sum is one matrix product with weights that are computed from the mask: a slice at a place
that depends on the length of the text would not stay in the delegate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ingot.llm.kv_cache import MASKED

LEAST = 1e-9  # of a sum that divides: an empty mask makes no NaN


def _first(mask: Tensor) -> Tensor:
    return (_positions(mask) == 0).float()


def _mean(mask: Tensor) -> Tensor:
    kept = mask.float()
    return kept / kept.sum(1, keepdim=True).clamp(min=LEAST)


def _mean_by_root(mask: Tensor) -> Tensor:
    kept = mask.float()
    return kept / kept.sum(1, keepdim=True).clamp(min=LEAST).sqrt()


def _by_position(mask: Tensor) -> Tensor:
    """Later tokens count more."""
    return _mean(mask * (_positions(mask) + 1))


def _last(mask: Tensor) -> Tensor:
    """One-hot: the last token that the mask leaves."""
    at = _positions(mask)
    return (at == (at * mask).amax(1, keepdim=True)).float()


def _positions(mask: Tensor) -> Tensor:
    return torch.arange(mask.shape[1])[None]


# In the order in which sentence-transformers joins several. The names are those of its settings.
TOKEN_WEIGHTS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "cls": _first,
    "max": None,
    "mean": _mean,
    "mean_sqrt_len": _mean_by_root,
    "weightedmean": _by_position,
    "lasttoken": _last,
}


class Pooling(nn.Module):
    """1 x tokens x width -> 1 x width, or the vectors of several poolings side by side."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.kinds = tuple(k for k in TOKEN_WEIGHTS if k in kinds)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        made = [_pooled(TOKEN_WEIGHTS[k], hidden, mask) for k in self.kinds]
        return made[0] if len(made) == 1 else torch.cat(made, -1)


def _pooled(weights: Callable[[Tensor], Tensor] | None, hidden: Tensor, mask: Tensor) -> Tensor:
    if weights is None:
        return (hidden + ((1.0 - mask.float()) * MASKED)[:, :, None]).amax(1)
    return torch.bmm(weights(mask)[:, None], hidden)[:, 0]


class UnitLength(nn.Module):
    """x -> x / |x|"""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


class DenseLayer(nn.Module):
    """x -> activation(linear(x))"""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.activation = linear, activation

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.activation(self.linear(x))
        return made
