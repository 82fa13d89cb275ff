"""Choose the next token from logits: the most likely one, or a random one of the likely ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """Without a temperature the most likely token is chosen; a repetition penalty counts there too."""

    temperature: float = 0.0
    top_p: float = 1.0  # the fewest tokens whose probabilities add up to this
    min_p: float = 0.0  # tokens at least this likely, relative to the most likely one
    repetition_penalty: float = 1.0  # logits of tokens of the text are divided by it, or multiplied where negative
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"invalid temperature {self.temperature}", hint="0 for the most likely token, or 0.7")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"invalid top_p {self.top_p}", why="it is a probability above 0", hint="0.9")
        if not 0.0 <= self.min_p <= 1.0:
            raise InputError(f"invalid min_p {self.min_p}", why="it is a probability", hint="0.05")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise InputError(f"invalid repetition penalty {self.repetition_penalty}", hint="1.1; 1 has no effect")


class TokenSampler:
    """One text: its random numbers, and the tokens that it has so far."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self.sampling, self.seen, self.random = sampling, {*prompt}, torch.Generator()
        if sampling.seed is None:
            self.random.seed()
        else:
            self.random.manual_seed(sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        token = self._chosen(self._penalized(logits.detach().flatten().to(torch.float32)))
        self.seen.add(token)
        return token

    def _penalized(self, logits: Tensor) -> Tensor:
        if self.sampling.repetition_penalty == 1.0 or not self.seen:
            return logits
        at, made = torch.tensor(sorted(self.seen)), logits.clone()
        found, penalty = made[at], self.sampling.repetition_penalty
        made[at] = torch.where(found > 0, found / penalty, found * penalty)
        return made

    def _chosen(self, logits: Tensor) -> int:
        if not self.sampling.temperature:
            return int(logits.argmax())
        likely = torch.softmax((logits - logits.max()) / self.sampling.temperature, -1)
        return int(torch.multinomial(_kept(likely, self.sampling), 1, generator=self.random))


def _kept(likely: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities, 0 for tokens that may not be chosen; the most likely token always may."""
    if sampling.min_p:
        likely = likely * (likely >= sampling.min_p * likely.max())
    if sampling.top_p < 1.0:
        ordered, at = (likely / likely.sum()).sort(descending=True)
        dropped = ordered.cumsum(-1) - ordered >= sampling.top_p
        likely = likely.index_fill(0, at[dropped], 0.0)
    return likely
