"""All families: library/family -> how its net is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from bench.entry import Entry
from bench.families import language_sound, vision

LIBRARIES: dict[str, tuple[Callable[[], dict[str, str]], Callable[[str], Entry]]] = {
    "timm": (vision.timm_families, vision.timm_entry),
    "torchvision": (vision.torchvision_families, vision.torchvision_entry),
    "transformers": (language_sound.transformers_families, language_sound.transformers_entry),
    "torchaudio": (language_sound.torchaudio_families, language_sound.torchaudio_entry),
}


@cache
def _nets(library: str) -> dict[str, str]:
    return LIBRARIES[library][0]()


def families() -> list[str]:
    return [f"{library}/{family}" for library in LIBRARIES for family in _nets(library)]


def family_entry(name: str) -> Entry:
    """Always the same net."""
    library, family = name.split("/", 1)
    torch.manual_seed(0)
    net = _nets(library)[family]
    entry = LIBRARIES[library][1](net)
    entry.note = f"{net}, {entry.note}"
    return entry
