"""A causal language model of `transformers` as one step for a program that owns its KV cache.

ExecuTorch's runners give tokens and positions, any number of them, and keep nothing else. So all masks are computed
from positions, and keys and values are read from buffers of the program: `ingot/lower/kv_buffers.py` adds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ingot.capture.kv_buffers import KVBuffers
from ingot.llm.attention import PrefixStep
from ingot.llm.decoder import Decoder
from ingot.llm.kv_cache import CAPACITY_STEP

CACHE_INPUT = 3  # tokens, positions and columns come first


class RunnerDecoder(Decoder):
    """forward(tokens, positions, columns, rows of keys and values by layer and head) -> last logits, new KV by layer.

    `columns` are 0, 1, 2 … as float, as many as each head has rows.
    """

    def forward(self, tokens: Tensor, positions: Tensor, columns: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self.run(tokens, positions, columns, rows)

    def run(
        self, tokens: Tensor, positions: Tensor, columns: Tensor, rows: tuple[Tensor, ...], last: bool = True
    ) -> tuple[Tensor, ...]:
        """With the logits of the last token, or of all."""
        step = PrefixStep(positions, columns, self.heads, dict(zip(self._windows, self._by_layer(rows), strict=True)))
        masks = {window: step.mask(window) for window in self.windows}
        step.masks = {layer: masks[window] for layer, window in self._windows.items()}
        kept = list[bool]()  # whether the rows of the last token were kept before the head
        with self._patched_model(step), ExitStack() as stack:
            if last:
                stack.enter_context(_last_row(self.model.base_model, step.last, kept))
            made = self.model(
                input_ids=tokens,
                position_ids=positions[None],
                attention_mask=masks[self.windows[0]][None],  # four dimensions: transformers makes no mask of its own
                past_key_values=step,
            )
        # Some heads call another module than the base model, so that all tokens have logits.
        logits = made.logits if kept or not last else torch.bmm(step.last, made.logits)
        return logits[0], *(t for layer in self._windows for t in step.new[layer])

    def _by_layer(self, rows: tuple[Tensor, ...]) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        many = self.heads.many
        for i in range(0, len(rows), 2 * many):
            yield rows[i : i + many], rows[i + many : i + 2 * many]

    @property
    def buffers_of_program(self) -> KVBuffers:
        rows = -(-self.context // CAPACITY_STEP) * CAPACITY_STEP
        return KVBuffers(2 * self.layers, self.heads.many, rows, self.heads.size, CAPACITY_STEP)

    def example(self, tokens: int, rows: int) -> tuple[Tensor, ...]:
        kv = self.buffers_of_program
        cached = [torch.zeros(1, rows, kv.size) for _ in range(kv.buffers * kv.heads)]
        return torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens), kv.columns(rows), *cached


class RunnerText:
    """One text in eager torch, by the step of the decoder or of a graph of it."""

    def __init__(self, kv: KVBuffers, step: Any) -> None:
        self.kv, self.step, self.position = kv, step, 0
        self.cache = [torch.zeros(kv.heads, kv.rows, kv.size) for _ in range(kv.buffers)]

    def logits(self, tokens: list[int]) -> Tensor:
        at = torch.arange(self.position, self.position + len(tokens))
        many = self.kv.rows_in_use(self.position, len(tokens))
        rows = [c[h : h + 1, :many] for c in self.cache for h in range(self.kv.heads)]
        logits, *new = self.step(torch.tensor([tokens]), at, self.kv.columns(many), *rows)
        for kept, made in zip(self.cache, new, strict=True):
            kept[:, at] = made
        self.position += len(tokens)
        return logits  # type: ignore[no-any-return]


@contextmanager
def _last_row(body: nn.Module, last: Tensor, kept: list[bool]) -> Iterator[None]:
    """Its hidden states of the last token alone: a one-hot product, since the place of that token varies."""

    def keep_last(_: nn.Module, __: Any, made: Any) -> Any:
        made.last_hidden_state = torch.bmm(last, made.last_hidden_state)
        kept.append(True)
        return made

    hook = body.register_forward_hook(keep_last)
    try:
        yield
    finally:
        hook.remove()
