"""Perplexity and KL divergence to the float model on a held-out text, by running the programs of the folders.

KL says more: with so few tokens, the perplexity of equally good weights varies by 2 %.

python -m bench.language.perplexity out/ours ...
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import kl_div, nll_loss

from bench.language import interpreted
from bench.language.weights import CONTEXT, UNSEEN, checkpoint, play
from ingot.llm import generation
from ingot.targets.vulkan.target import BACKEND

WINDOWS = 4


def windows(tokenizer: object) -> list[list[int]]:
    tokens = tokenizer(play(UNSEEN, 20_000, 32_000))["input_ids"]  # type: ignore[operator]
    return [tokens[i * CONTEXT : (i + 1) * CONTEXT] for i in range(WINDOWS)]


def by_float(model: torch.nn.Module, texts: list[list[int]]) -> torch.Tensor:
    """Log-probabilities after each token but the last of each text."""
    with torch.no_grad():
        return torch.cat([model(torch.tensor([t])).logits[0, :-1].log_softmax(-1) for t in texts])


def by_folder(folder: Path, texts: list[list[int]]) -> Iterator[torch.Tensor]:
    """Log-probabilities of decoding token by token; a Vulkan program is interpreted."""
    vulkan = BACKEND.encode() in (folder / "model.pte").read_bytes()
    for tokens in texts:
        session = interpreted.open_session(folder) if vulkan else generation.open_session(folder)
        yield from (session.decode(token).log_softmax(-1) for token in tokens[:-1])


def perplexity(expected: torch.Tensor, texts: list[list[int]]) -> float:
    return math.exp(float(nll_loss(expected, torch.tensor([t for tokens in texts for t in tokens[1:]]))))


def main(folders: list[Path]) -> None:
    found = checkpoint()
    texts = windows(found.tokenizer)
    wanted = by_float(found.model, texts)
    print(f"float: {(whole := perplexity(wanted, texts)):.2f}")
    for folder in folders:
        expected = torch.stack(list(by_folder(folder, texts)))
        made, kl = perplexity(expected, texts), kl_div(expected, wanted, reduction="batchmean", log_target=True)
        size = (folder / "model.pte").stat().st_size / 1e6
        print(f"{folder.name}: {made:.2f}, {made / whole:.3f} of float, KL {float(kl):.4f}, {size:.1f} MB")


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]])
