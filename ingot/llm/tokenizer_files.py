"""The files of a tokenizer, beside the program: runners read tokenizer.json."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ingot.errors import InputError

TOKENIZER_FILE = "tokenizer.json"


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="ingot-tokenizer-") as name:
        tokenizer.save_pretrained(name)
        found = {f.name: f.read_bytes() for f in Path(name).iterdir() if f.is_file()}
    if TOKENIZER_FILE not in found:
        why = f"{type(tokenizer).__name__} saves {', '.join(sorted(found)) or 'nothing'}"
        raise InputError(f"the tokenizer has no {TOKENIZER_FILE}", why=why, hint="pip install sentencepiece tiktoken")
    return found


def parsed_tokenizer(saved: bytes, where: str) -> Any:
    """As a runner reads it, without `transformers`."""
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise InputError("text needs tokenizers", why=str(e), hint="pip install tokenizers") from e
    try:
        return Tokenizer.from_buffer(saved)
    except Exception as e:  # the library raises nothing narrower
        raise InputError(f"{where} cannot be read", why=str(e), hint="cast it with `ingot cast --hf`") from e


def read_tokenizer(folder: Path) -> Any:
    file = folder / TOKENIZER_FILE
    try:
        saved = file.read_bytes()
    except OSError as e:
        hint = "cast it with `ingot cast --hf`"
        raise InputError(f"{folder} has no {TOKENIZER_FILE}", why=e.strerror, hint=hint) from e
    return parsed_tokenizer(saved, str(file))
