"""Tiny decoders of `transformers` with random weights, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

import torch

from ingot.llm.hf_imports import import_transformers

transformers = import_transformers()
ARCHITECTURES = ("Llama", "Qwen2", "Qwen3", "Gemma")


class LetterTokenizer:
    """One token per letter."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % 256 for c in text]}


def tiny_decoder(architecture: str = "Llama") -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=256, max_position_embeddings=64, head_dim=16, tie_word_embeddings=True, eos_token_id=None,
        bos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    return getattr(transformers, f"{architecture}ForCausalLM")(config).eval()


def outlier_decoder(architecture: str = "Llama") -> Any:
    """Norm gains that differ, biases, and one outlier channel, as trained decoders have."""
    model = tiny_decoder(architecture)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(torch.rand_like(value) * 2 + 0.1)
            if "bias" in name:
                value.normal_()
        model.model.embed_tokens.weight[:, 3] *= 30
    return model
