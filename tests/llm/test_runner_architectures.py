"""Artefacts that own their KV cache give the logits of `transformers`, for every architecture of decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.llm import attention, attention_probe, generation
from ingot.llm.checkpoint import Checkpoint
from ingot.llm.generation import open_session
from ingot.llm.pipeline import cast_decoder
from ingot.verify.metrics import sqnr
from tests.support.decoders import LetterTokenizer
from tests.support.tiny_architectures import tiny_of

CONTEXT, PROMPT, CHUNK, LAYERS = 40, 21, 7, 2
TOKENS = [(7 * i + 3) % 250 + 3 for i in range(CONTEXT)]  # five windows
NOISE_DB = 20.0  # 8-bit weights and activations leave more; without softcap 15 are left, without a window less than 0
QUICK = ["LlamaForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel"]
OTHERS = [
    "SmolLM3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM", "Gemma3ForCausalLM",
    "PhiForCausalLM", "Phi3ForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM",
    "GPTNeoXForCausalLM", "OPTForCausalLM", "StableLmForCausalLM", "GraniteForCausalLM", "CohereForCausalLM",
    "Cohere2ForCausalLM", "Starcoder2ForCausalLM",
]  # fmt: skip
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip


def tiny(architecture: str, **options: Any) -> Any:
    """Small weights, so that noise does not grow from layer to layer."""
    return tiny_of(architecture, **{"initializer_range": 0.02, **options})


def attentive(architecture: str) -> Any:
    """Large scores: softcap and window change what a token attends to."""
    model = tiny(architecture)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                value.mul_(3)
            if "v_proj" in name or "o_proj" in name:
                value.mul_(2)
    return model


def cast_into(folder: Path, model: Any) -> ingot.Casting:
    casting, spec = cast_decoder(
        Checkpoint(model, LetterTokenizer(), "tiny"), target="xnnpack", weights="8da8w", context=CONTEXT,
        texts=["some text that is long enough for a window. "], on_mismatch="keep",
    )  # fmt: skip
    casting.save(folder / "model.pte")
    (folder / generation.DECODER_FILE).write_text(spec.to_json())
    return casting


def worst_noise(folder: Path, model: Any) -> float:
    """A prompt in chunks, then token by token up to the end of the context; SQNR of the logits, in dB."""
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    session, rows = open_session(folder), list[tuple[int, torch.Tensor]]()
    for start in range(0, PROMPT, CHUNK):
        rows.append((start + CHUNK - 1, session.prefill(TOKENS[start : start + CHUNK])))
    rows += [(i, session.decode(TOKENS[i]).clone()) for i in range(PROMPT, CONTEXT)]
    return min(sqnr(wanted[i], made) for i, made in rows)


def assert_right(folder: Path, model: Any) -> None:
    casting = cast_into(folder, model)
    assert len(casting.delegates) == 1
    assert [i.name for i in casting.io.inputs] == ["tokens", "positions"]
    assert worst_noise(folder, model) > NOISE_DB


@pytest.mark.parametrize("architecture", QUICK)
def test_the_artefact_gives_the_logits_of_the_model(architecture: str, tmp_path: Path) -> None:
    assert_right(tmp_path, attentive(architecture))


@pytest.mark.long
@pytest.mark.parametrize("architecture", OTHERS)
def test_other_architectures(architecture: str, tmp_path: Path) -> None:
    assert_right(tmp_path, tiny(architecture))


@pytest.mark.long
@pytest.mark.parametrize("kind", SCALINGS)
def test_position_scalings(kind: str, tmp_path: Path) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, **SCALINGS[kind]}
    assert_right(tmp_path, tiny("LlamaForCausalLM", rope_parameters=rope, max_position_embeddings=16))


def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison in float, which refuses these before they are cast."""
    monkeypatch.setattr("ingot.llm.pipeline.check_runner_decoder", lambda *_: None)


def test_a_dropped_softcap_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = attentive("Gemma2ForCausalLM")
    monkeypatch.setattr(attention, "_softcapped", lambda scores, _: scores)
    with pytest.raises(ingot.InputError, match="Gemma2ForCausalLM · where: token"):
        cast_into(tmp_path, model)
    _unchecked(monkeypatch)
    cast_into(tmp_path, model)
    assert worst_noise(tmp_path, model) < NOISE_DB


def test_a_dropped_window_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = attentive("MistralForCausalLM")
    monkeypatch.setattr(attention_probe, "_window", lambda *_: 0)
    with pytest.raises(ingot.InputError, match="MistralForCausalLM · where: token 8 of the sample"):
        cast_into(tmp_path, model)
    _unchecked(monkeypatch)
    cast_into(tmp_path, model)
    assert worst_noise(tmp_path, model) < NOISE_DB
