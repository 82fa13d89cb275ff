"""Load a causal language model from a Hugging Face folder or a GGUF file. Pickled weights are never read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ingot.core.host_memory import map_large_blocks, mmap_parameters, trim_heap
from ingot.errors import InputError
from ingot.llm.hf_imports import import_transformers


@dataclass(frozen=True)
class Checkpoint:
    """A model in float32, and its tokenizer."""

    model: Any
    tokenizer: Any
    name: str


def load_checkpoint(path: str | Path) -> Checkpoint:
    """A folder with config.json and *.safetensors, or a .gguf file."""
    file = Path(path)
    folder, gguf = (file.parent, file.name) if file.suffix == ".gguf" else (file, None)
    refuse_missing_files(folder, gguf)
    transformers = import_transformers()
    map_large_blocks()
    how: dict[str, Any] = {"local_files_only": True, **({"gguf_file": gguf} if gguf else {"use_safetensors": True})}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)
        how.pop("use_safetensors", None)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **how)
    except Exception as e:
        raise unreadable_checkpoint(file, e) from e
    mmap_parameters(model)
    trim_heap(graphs=True)  # the file's buffers, and temporary copies of its tensors
    return Checkpoint(model.eval(), tokenizer, file.stem)


def refuse_missing_files(folder: Path, gguf: str | None) -> None:
    """Before `transformers` looks for them elsewhere."""
    wanted = [gguf] if gguf else ["config.json"]
    missing = [name for name in wanted if name and not (folder / name).is_file()]
    if missing or not (gguf or list(folder.glob("*.safetensors"))):
        why = f"{missing[0]} is missing" if missing else "there are no .safetensors files"
        hint = "name a folder with config.json and *.safetensors, or a .gguf file"
        raise InputError(f"no language model in {folder}", why=why, hint=hint)


def unreadable_checkpoint(file: Path, error: Exception) -> InputError:
    """The first line of the error of transformers or safetensors."""
    lines = str(error).strip().splitlines() or [""]
    hint = "check that the folder is complete and that transformers supports its architecture"
    why = f"{type(error).__name__}: {lines[0][:300]}"
    return InputError(f"{file} cannot be read", why=why, hint=f"{hint}: pip install -U transformers")
