"""Which checkpoints are encoders of text, by what `transformers` says of the architecture; and their weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ingot.capture.export import Program
from ingot.errors import InputError
from ingot.llm.checkpoint import refuse_missing_files, unreadable_checkpoint
from ingot.llm.hf_imports import import_transformers
from ingot.llm.sentence_layout import SentenceLayout, has_sentence_layout, plain_layout, read_sentence_layout


@dataclass(frozen=True)
class EncoderCheckpoint:
    """An encoder in float32, its tokenizer, and what is done with its hidden states."""

    model: Any
    tokenizer: Any
    layout: SentenceLayout
    missing: frozenset[str] = frozenset()  # weights that the files do not have


def is_encoder_checkpoint(path: Path) -> bool:
    """A folder in the layout of sentence-transformers, or an architecture that neither generates nor is causal."""
    if has_sentence_layout(path):
        return True
    if not (path / "config.json").is_file():
        return False
    transformers = import_transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        kind = getattr(transformers, (config.architectures or [""])[0], None)
        return kind is not None and not kind.can_generate() and not _is_causal(config)
    except Exception:  # whatever is wrong with it, the road of decoders says it
        return False


def _is_causal(config: Any) -> bool:
    with torch.device("meta"):
        model = import_transformers().AutoModel.from_config(config)
    return any(getattr(m, "is_causal", False) is True for m in model.modules())


def load_encoder(folder: Path) -> EncoderCheckpoint:
    layout = read_sentence_layout(folder) if has_sentence_layout(folder) else plain_layout(folder)
    refuse_missing_files(layout.encoder, None)
    transformers, place = import_transformers(), layout.encoder
    try:
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
        kind = transformers.AutoModelForTextEncoding if config.is_encoder_decoder else transformers.AutoModel
        model, found = kind.from_pretrained(
            place, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
    except Exception as e:
        raise unreadable_checkpoint(place, e) from e
    return EncoderCheckpoint(model.eval(), tokenizer, layout, frozenset(found["missing_keys"]))


def refuse_random_weights(program: Program, missing: Iterable[str], prefix: str) -> None:
    """Weights that the files lack are random; those that the output does not depend on, as of a head, do not matter."""
    used = {str(n.target) for n in program.module.graph.nodes if n.op == "get_attr"}
    if lacking := sorted(name for name in missing if f"{prefix}{name}" in used):
        why = f"{lacking[0]} is missing" + (f", and {len(lacking) - 1} more" if lacking[1:] else "")
        raise InputError("the checkpoint lacks weights", why=why, hint="check that the folder is complete")
