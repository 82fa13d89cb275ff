"""A sentence-transformers folder as one step: tokens and positions in, one embedding out, for any number of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ingot.core.host_memory import map_large_blocks
from ingot.errors import InputError, first_sentence
from ingot.llm.attention_probe import attention_implementation
from ingot.llm.hf_imports import import_transformers

MODULES = "modules.json"
Pooling = Literal["mean", "first"]
POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
HINT = "cast it as a plain model: ingot cast net.py:build --weights 8da8w"


@dataclass(frozen=True)
class EncoderCheckpoint:
    """A model in float32, its tokenizer, and what is done with its hidden states."""

    model: Any
    tokenizer: Any
    pooling: Pooling
    normalized: bool
    longest: int  # tokens; 0 where the folder does not say


class SentenceEncoder(nn.Module):
    """forward(tokens, positions) -> the pooled hidden states. One text at a time, so that nothing is padded."""

    def __init__(self, found: EncoderCheckpoint) -> None:
        super().__init__()
        self.model, self.pooling, self.normalized = found.model, found.pooling, found.normalized

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        at = positions.to(torch.float32).view(1, 1, -1)
        more = {"token_type_ids": tokens * 0} if _has_types(self.model) else {}
        more["attention_mask"] = (at * 0.0)[None]  # four dimensions: transformers makes no mask of its own
        with attention_implementation(self.model, "eager"):
            hidden = self.model(input_ids=tokens, position_ids=positions[None], **more).last_hidden_state
        if self.pooling == "mean":  # a sum by a product with ones: their number varies
            each = at * 0.0 + 1.0
            made = torch.bmm(each, hidden) / torch.bmm(each, each.transpose(1, 2))
        else:
            made = torch.bmm(torch.clamp(1.0 - at, 0.0, 1.0), hidden)
        return _unit(made).view(1, -1) if self.normalized else made.view(1, -1)

    def wanted(self, tokens: list[int]) -> Tensor:
        """By the model as it is, with its own positions."""
        with torch.no_grad():
            hidden = self.model(input_ids=torch.tensor([tokens])).last_hidden_state
        made = hidden.mean(1) if self.pooling == "mean" else hidden[:, 0]
        return nn.functional.normalize(made, dim=-1) if self.normalized else made


def encoder_inputs(tokens: list[int]) -> tuple[Tensor, Tensor]:
    return torch.tensor([tokens]), torch.arange(len(tokens))


def _unit(row: Tensor) -> Tensor:
    return row / torch.sqrt(torch.bmm(row, row.transpose(1, 2)))


def _has_types(model: Any) -> bool:
    return bool(getattr(model.config, "type_vocab_size", 0))


def is_sentence_encoder(path: Path) -> bool:
    return (path / MODULES).is_file()


def load_encoder(folder: Path) -> EncoderCheckpoint:
    """A folder as sentence-transformers saves it. Pickled weights are never read."""
    transformers = import_transformers()
    map_large_blocks()
    pooling, normalized = _pooling(folder)
    inside = folder / next(m["path"] for m in _modules(folder) if m["type"].endswith("Transformer"))
    try:
        model = transformers.AutoModel.from_pretrained(
            inside, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(inside, local_files_only=True)
    except Exception as e:
        why = f"{type(e).__name__}: {first_sentence(e)}"
        raise InputError(f"{folder} cannot be read", why=why, hint="check that the folder is complete") from e
    longest = int(_json(inside / "sentence_bert_config.json", {}).get("max_seq_length") or 0)
    return EncoderCheckpoint(model.eval(), tokenizer, pooling, normalized, longest)


def _pooling(folder: Path) -> tuple[Pooling, bool]:
    kinds = {m["type"].rpartition(".")[2]: m for m in _modules(folder)}
    if unknown := [k for k in kinds if k not in ("Transformer", "Pooling", "Normalize")] or "Pooling" not in kinds:
        part = unknown[0] if isinstance(unknown, list) else "no Pooling"
        raise InputError("unsupported embedding model", where=str(folder / MODULES), why=f"it has {part}", hint=HINT)
    config = _json(folder / kinds["Pooling"]["path"] / "config.json", {})
    asked = [k for k, on in config.items() if k.startswith("pooling_mode_") and on is True]
    if len(asked) != 1 or asked[0] not in POOLINGS:
        why = f"its pooling is {', '.join(asked) or 'not named'}"
        raise InputError("unsupported embedding model", where=str(folder / MODULES), why=why, hint=HINT)
    return POOLINGS[asked[0]], "Normalize" in kinds


def _modules(folder: Path) -> list[dict[str, Any]]:
    found = _json(folder / MODULES, None)
    if not isinstance(found, list) or not all(isinstance(m, dict) and {"type", "path"} <= {*m} for m in found):
        raise InputError(f"{folder / MODULES} names no modules", hint="name a folder of sentence-transformers")
    return found


def _json(file: Path, default: Any) -> Any:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return default
    except (OSError, ValueError) as e:
        raise InputError(f"{file} cannot be read", why=str(e), hint="check that the folder is complete") from e
