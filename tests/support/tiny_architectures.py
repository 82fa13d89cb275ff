"""A tiny random decoder of any architecture of `transformers`: small sizes for whatever names its config has."""

from __future__ import annotations

import contextlib
import copy
import io
from typing import Any

import torch

from ingot.llm.hf_imports import import_transformers

transformers = import_transformers()
LAYERS, WINDOW, MOST_PARAMETERS = 4, 8, 30_000_000
# The names that configs use for the same sizes; options that change attention are on where a config knows them.
SIZES: dict[str, Any] = {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "embed_dim": 64, "word_embed_proj_dim": 64,
    "intermediate_size": 96, "ffn_dim": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "num_layers": LAYERS, "n_layers": LAYERS,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rotary_dim": 8,
    "vocab_size": 256, "vocab_size_per_layer_input": 256, "hidden_size_per_layer_input": 8,
    "max_position_embeddings": 64, "n_positions": 64, "sliding_window": WINDOW, "window_size": WINDOW,
    "use_sliding_window": True, "max_window_layers": 2, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 16, "initializer_range": 0.1, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
NOT_TOGETHER: tuple[list[str], ...] = (
    [],
    ["layer_types"],
    ["num_key_value_heads"],
    ["head_dim"],
    ["layer_types", "head_dim"],
)


def all_architectures() -> dict[str, tuple[Any, Any]]:
    """Config and model class of every causal language model, by the name of the model class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    pairs: Any = MODEL_FOR_CAUSAL_LM_MAPPING.items()
    return {model.__name__: (config, model) for config, model in pairs}


def tiny_of(architecture: str, **options: Any) -> Any:
    """Random weights, norms and biases that are large enough for every option to show in the logits."""
    config_class, model_class = all_architectures()[architecture]
    with contextlib.redirect_stdout(io.StringIO()):
        config = _tiny_config(config_class, options)
        _refuse_large(model_class, config)
        torch.manual_seed(0)
        model = model_class(config).eval().float()
    _randomize(model)
    return model


def _refuse_large(model_class: Any, config: Any) -> None:
    """A config with other names has its default sizes: gigabytes. Counted without memory."""
    with torch.device("meta"):
        many = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
    if many > MOST_PARAMETERS:
        raise MemoryError(f"{many:,} parameters")


def _tiny_config(config_class: Any, options: dict[str, Any]) -> Any:
    default = config_class().get_text_config()
    sizes = {k: v for k, v in SIZES.items() if hasattr(default, k)}
    if kinds := list(dict.fromkeys(getattr(default, "layer_types", None) or ())):
        sizes["layer_types"] = [kinds[i % len(kinds)] for i in range(LAYERS)]
    for dropped in NOT_TOGETHER:
        with contextlib.suppress(Exception):
            return type(default)(**{k: v for k, v in sizes.items() if k not in dropped} | options)
    return type(default)(**sizes | options)


def _randomize(model: torch.nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.mul_(2)
            elif "norm" in name or "ln_" in name:
                value.copy_(torch.rand_like(value) + 0.5)
            else:
                value.normal_(0, 0.3)
