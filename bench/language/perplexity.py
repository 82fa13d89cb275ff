"""Perplexity on a text that no weight was rounded with: of the float model, and of folders by running what is in them.

python -m bench.language.perplexity out/ours ...
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from bench.language import interpreted
from bench.language.weights import CONTEXT, UNSEEN, checkpoint, play
from ingot.llm import text
from ingot.targets.vulkan import BACKEND

WINDOWS = 4


def windows(tokenizer: object) -> list[list[int]]:
    tokens = tokenizer(play(UNSEEN, 20_000, 32_000))["input_ids"]  # type: ignore[operator]
    return [tokens[i * CONTEXT : (i + 1) * CONTEXT] for i in range(WINDOWS)]


def of_float(model: torch.nn.Module, texts: list[list[int]]) -> float:
    with torch.no_grad():
        each = [cross_entropy(model(torch.tensor([t])).logits[0, :-1], torch.tensor(t[1:])) for t in texts]
    return math.exp(sum(float(e) for e in each) / len(each))


def of_folder(folder: Path, texts: list[list[int]]) -> float:
    """Token after token, as text is generated; what no runtime here runs is interpreted."""
    lost, vulkan = list[float](), BACKEND.encode() in (folder / "model.pte").read_bytes()
    for tokens in texts:
        session = interpreted.open_session(folder) if vulkan else text.open_session(folder)
        for token, after in itertools.pairwise(tokens):
            lost.append(float(cross_entropy(session.feed(token)[None], torch.tensor([after]))))
    return math.exp(sum(lost) / len(lost))


def main(folders: list[Path]) -> None:
    found = checkpoint()
    texts = windows(found.tokenizer)
    whole = of_float(found.model, texts)
    print(f"float: {whole:.2f}")
    for folder in folders:
        made = of_folder(folder, texts)
        size = (folder / "model.pte").stat().st_size / 1e6
        print(f"{folder.name}: {made:.2f}, {made / whole:.3f} of float, {size:.1f} MB")


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]])
