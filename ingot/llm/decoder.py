"""A causal language model of `transformers` as one exportable step: tokens and KV cache in, logits and new KV out.

The caller owns the KV cache: cached keys and values are inputs, those of the new tokens are outputs. So the program
has no mutable state that would split the delegate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ingot.llm.attention import StepCache, cached_attention, current_step
from ingot.llm.attention_probe import attention_implementation, probe_decoder
from ingot.llm.hf_imports import import_transformers
from ingot.llm.kv_cache import CAPACITY_STEP, empty_kv_cache, step_inputs
from ingot.llm.position_tables import PositionTable

OURS = "ingot"  # our attention in the registry of transformers
STEP_INPUTS = 4  # tokens, positions, mask and places; then further masks, then the cache
CALIBRATION_LOGITS = 64  # tokens at the end of a calibration text whose logits are computed


class Decoder(nn.Module):
    """forward(tokens, positions, mask, places, more masks, keys and values by layer) -> last logits, new KV by layer.

    A mask has a column per cache position, and a row per new token and query head of a key. There is one mask per
    window. `places` is one-hot: the cache position of each new token, per head of keys.
    """

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        layout = probe_decoder(model, context)
        import_transformers().AttentionInterface.register(OURS, cached_attention)
        self.model, self.context, self.heads, self._windows = model, context, layout.heads, layout.windows
        self.layers, self.windows = len(layout.windows), tuple(sorted({*layout.windows.values()}))
        self._tables = dict[str, str]()  # our attribute, by the path of the module that it replaces
        for path in dict.fromkeys(c.path for c in layout.positions):
            # The attribute's name is part of plan fingerprints and reports.
            self._tables[path] = f"position_table_{len(self._tables)}"
            calls = [c for c in layout.positions if c.path == path]
            setattr(self, self._tables[path], PositionTable(model, calls, context))

    @property
    def cache_input(self) -> int:
        """The index of the first cache input."""
        return STEP_INPUTS + len(self.windows) - 1

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, places: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        return self.step(1, tokens, positions, mask, places, *rest)

    def step(self, logits: int, tokens: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """With the logits of the last tokens; 0: of all."""
        positions, mask, places, *rest = inputs
        masks = dict(zip(self.windows, (mask, *rest), strict=False))
        past = rest[len(self.windows) - 1 :]
        by_layer = {layer: masks[window] for layer, window in self._windows.items()}
        step = StepCache([*self._windows], positions, places, by_layer, [*zip(past[::2], past[1::2], strict=True)])
        with self._patched_model(step):
            made = self.model(
                input_ids=tokens,
                position_ids=positions[None],
                attention_mask=mask[None],  # four dimensions: transformers makes no mask of its own
                past_key_values=step,
                logits_to_keep=logits,
            )
        return made.logits[0], *(t for layer in self._windows for t in step.new[layer])

    def full_forward(self, tokens: list[int]) -> Tensor:
        """A whole text in one forward, by the model's own attention, which is twice as fast; logits of the last tokens.

        More than one token has logits, so that the head gets enough calibration rows.
        """
        ids = torch.tensor([tokens])
        made: Tensor = self.model(input_ids=ids, logits_to_keep=CALIBRATION_LOGITS, use_cache=False).logits[0]
        return made

    @contextmanager
    def _patched_model(self, step: StepCache) -> Iterator[None]:
        """The user's model with our attention and position tables, for one forward."""
        with ExitStack() as stack, attention_implementation(self.model, OURS), current_step(step):
            for path, name in self._tables.items():
                stack.enter_context(_replaced(self.model, path, getattr(self, name)))
            yield

    def example_inputs(self, many: int) -> tuple[Tensor, ...]:
        """Inputs of `many` new tokens, with a cache of full capacity."""
        return self.inputs_for([0] * many, self.empty_cache(self.context), 0)

    def inputs_for(self, tokens: list[int], cache: list[Tensor], position: int, width: int = 0) -> tuple[Tensor, ...]:
        """Inputs of some tokens after `position` cached ones, padded to `width`."""
        width, capacity = width or len(tokens), cache[0].shape[-1]
        return *step_inputs(tokens, position, width, self.heads, capacity, self.windows), *cache

    def empty_cache(self, capacity: int) -> list[Tensor]:
        return empty_kv_cache(self.layers, self.heads, capacity)

    @property
    def capacity_dims(self) -> dict[int, frozenset[int]]:
        """By input, the dimensions that are as long as the cache; none where the capacity is fixed."""
        if self.context <= CAPACITY_STEP:
            return {}
        masks = dict.fromkeys((2, 3, *range(STEP_INPUTS, self.cache_input)), 2)
        cache = {self.cache_input + i: 1 + (i + 1) % 2 for i in range(2 * self.layers)}
        return {i: frozenset({d}) for i, d in {**masks, **cache}.items()}


@contextmanager
def _replaced(model: nn.Module, path: str, other: nn.Module) -> Iterator[None]:
    """The model with another submodule at the path."""
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)
