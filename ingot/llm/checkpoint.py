"""A causal language model from a folder of Hugging Face's kind or a GGUF file: weights are read, never unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ingot.core.host_memory import map_large_blocks, mmap_parameters, trim_heap
from ingot.errors import InputError
from ingot.llm.hf_library import transformers


@dataclass(frozen=True)
class Checkpoint:
    """A model in float32, and the tokenizer that goes with it."""

    model: Any
    tokenizer: Any
    name: str


def load(path: str | Path) -> Checkpoint:
    place = Path(path)
    folder, gguf = (place.parent, place.name) if place.suffix == ".gguf" else (place, None)
    _refuse_missing(folder, gguf)
    library = transformers()
    map_large_blocks()
    how: dict[str, Any] = {"local_files_only": True, **({"gguf_file": gguf} if gguf else {"use_safetensors": True})}
    try:
        model = library.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)
        how.pop("use_safetensors", None)
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **how)
    except Exception as e:
        raise _unreadable(place, e) from e
    mmap_parameters(model)
    trim_heap(graphs=True)  # the file, and copies of its tensors on the way
    return Checkpoint(model.eval(), tokenizer, place.stem)


def _refuse_missing(folder: Path, gguf: str | None) -> None:
    wanted = [gguf] if gguf else ["config.json"]
    missing = [name for name in wanted if name and not (folder / name).is_file()]
    if missing or not (gguf or list(folder.glob("*.safetensors"))):
        what = f"{missing[0]} is not there" if missing else "there are no .safetensors"
        hint = "name the folder with config.json and *.safetensors, or a .gguf file"
        raise InputError(f"{folder} holds no language model", why=what, hint=hint)


def _unreadable(place: Path, error: Exception) -> InputError:
    """What transformers or safetensors say, in one line; pickled weights are not tried."""
    said = str(error).strip().splitlines() or [""]
    hint = (
        "is the folder whole, and does this version of transformers know its architecture? pip install -U transformers"
    )
    return InputError(f"{place} cannot be read", why=f"{type(error).__name__}: {said[0][:300]}", hint=hint)
