"""Folders in the layout of sentence-transformers: tiny encoders with random weights, and a tokenizer of words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ingot.llm.hf_imports import import_transformers

transformers = import_transformers()
TEXT = "the river had risen in night and lower field lay under water to bake a plain loaf you need flour"
WORDS = TEXT.split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def word_tokenizer() -> Any:
    """[CLS] words [SEP]"""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    known = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def tiny_encoder(kind: str = "Bert", head: str = "Model", **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "max_position_embeddings": 48, "pad_token_id": 0, **options,
    }  # fmt: skip
    model = getattr(transformers, f"{kind}{head}")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0, 0.3)
    return model


def encoder_folder(
    folder: Path, model: Any = None, pooling: Mapping[str, Any] | None = None, stages: Sequence[str] = ("Normalize",)
) -> Path:
    """Without `pooling` a plain checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (tiny_encoder() if model is None else model).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    if pooling is None:
        return folder
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *((s, f"{i}_{s}") for i, s in enumerate(stages, 2))]
    modules = [{"idx": i, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (k, p) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def add_dense(folder: Path, name: str, linear: nn.Linear, activation: str) -> None:
    from safetensors.torch import save_file

    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({"activation_function": activation}))
    state = {f"linear.{k}": v.detach().clone() for k, v in linear.state_dict().items()}
    save_file(state, folder / name / "model.safetensors")
