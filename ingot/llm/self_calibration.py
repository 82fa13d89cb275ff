"""Calibration text where none is given: the model continues the built-in sample, as it would on its own data.

A paragraph has too few tokens for GPTQ. What a model writes has the statistics of what it was trained on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STARTS, START_TOKENS = 16, 6  # texts at once, and the tokens of the sample that each begins with
MOST_TOKENS = 192  # of each text
SEED = 0


def sampled_texts(model: Any, samples: list[list[int]], rows: int, context: int) -> list[list[int]]:
    """About as many tokens as `rows`, in texts that fit in the context; the same ones in every run."""
    length = min(MOST_TOKENS, context, -(-rows // STARTS)) - START_TOKENS
    if length <= 0:
        return []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        return _continued(model, _starts(samples), length).tolist()


def _starts(samples: list[list[int]]) -> Tensor:
    """Pieces of the sample, evenly spaced."""
    tokens = [t for s in samples for t in s]
    tokens = tokens * -(-(STARTS + START_TOKENS) // len(tokens))
    first = [i * (len(tokens) - START_TOKENS) // STARTS for i in range(STARTS)]
    return torch.tensor([tokens[i : i + START_TOKENS] for i in first])


def _continued(model: Any, tokens: Tensor, many: int) -> Tensor:
    """Random tokens by their probabilities. A token that ends texts is like any other: the next text follows."""
    past, given = None, tokens
    for _ in range(many):
        made = model(input_ids=given, past_key_values=past, use_cache=True, logits_to_keep=1)
        past, likely = made.past_key_values, torch.softmax(made.logits[:, -1].float(), -1)
        given = torch.multinomial(likely, 1)
        tokens = torch.cat([tokens, given], 1)
    return tokens
