"""Every decoder architecture of `transformers` gives the logits of `model()` at every position, or is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.llm import attention_probe, float_check
from ingot.llm.attention_probe import probe_decoder
from ingot.llm.decoder import Decoder
from ingot.llm.float_check import FLOAT_DB, check_decoder, stepwise_logits
from ingot.verify.metrics import sqnr
from tests.support.tiny_architectures import WINDOW, all_architectures, tiny_of

CONTEXT, CHUNK = 48, 16
TOKENS = [(7 * i + 3) % 250 + 3 for i in range(40)]  # five windows


def worst_db(model: Any, tokens: list[int], context: int = CONTEXT) -> float:
    """Of all positions: token by token, and in chunks, of which the last is partial. The model is unchanged."""
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        decoder = Decoder(model, context)
        made = [stepwise_logits(decoder, tokens, widths) for widths in ([1] * len(tokens), [CHUNK] * len(tokens))]
        assert torch.equal(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0], wanted)
    return min(sqnr(w, m) for one in made for w, m in zip(wanted, one, strict=True))


RIGHT = [
    "LlamaForCausalLM", "SmolLM3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "MistralForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM",
    "OlmoForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "OPTForCausalLM",
    "StableLmForCausalLM", "GraniteForCausalLM", "Qwen2MoeForCausalLM", "OlmoeForCausalLM", "MixtralForCausalLM",
    "CohereForCausalLM", "Cohere2ForCausalLM", "Starcoder2ForCausalLM", "GptOssForCausalLM",
]  # fmt: skip
REFUSED = {
    "FalconForCausalLM": "do not call attention through the AttentionInterface",
    "BloomForCausalLM": "do not call attention through the AttentionInterface",
    "MambaForCausalLM": "",
}


@pytest.mark.parametrize("architecture", RIGHT)
def test_the_logits_are_those_of_the_model(architecture: str) -> None:
    assert worst_db(tiny_of(architecture), TOKENS) > FLOAT_DB


@pytest.mark.parametrize("architecture", REFUSED)
def test_an_architecture_with_another_state_is_refused(architecture: str) -> None:
    with pytest.raises(ingot.InputError, match=REFUSED[architecture]) as caught:
        Decoder(tiny_of(architecture), CONTEXT)
    assert architecture in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("architecture", all_architectures())
def test_no_architecture_is_wrong(architecture: str) -> None:
    """Also those that nobody has looked at: right, or refused by an InputError."""
    try:
        model = tiny_of(architecture)
        model(input_ids=torch.tensor([TOKENS]), use_cache=False)
    except Exception as e:
        pytest.skip(f"no tiny model: {type(e).__name__}: {e}")
    try:
        check_decoder(Decoder(model, CONTEXT), TOKENS, CHUNK)
    except ingot.InputError as e:
        refused = str(e)
    else:
        refused = ""
    assert architecture in refused or worst_db(model, TOKENS) > FLOAT_DB


# ---- windows ----


@pytest.mark.parametrize(
    ("architecture", "windows"),
    [("LlamaForCausalLM", (0,)), ("MistralForCausalLM", (WINDOW,)), ("Gemma2ForCausalLM", (0, WINDOW))],
)
def test_windows_are_found_by_running_the_model(architecture: str, windows: tuple[int, ...]) -> None:
    model = tiny_of(architecture)
    assert Decoder(model, CONTEXT).windows == windows
    assert Decoder(model, WINDOW).windows == (0,)  # no text is longer than the window


def test_without_its_window_a_decoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison with the model sees what the probe would overlook."""
    monkeypatch.setattr(attention_probe, "_window", lambda *_: 0)
    model = tiny_of("MistralForCausalLM")
    with pytest.raises(ingot.InputError, match=r"MistralForCausalLM · where: token 8 of the sample"):
        check_decoder(Decoder(model, CONTEXT), TOKENS, CHUNK)
    check_decoder(Decoder(model, CONTEXT), TOKENS[:WINDOW], CHUNK)  # as long as no token is beyond the window


def test_a_mask_that_is_no_window_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import masking_utils

    def in_chunks(batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv <= q) & (kv // 8 == q // 8)

    monkeypatch.setattr(masking_utils, "causal_mask_function", in_chunks)
    with pytest.raises(ingot.InputError, match="layer 0 · why: token 8 sees other tokens than a causal sliding window"):
        Decoder(tiny_of("LlamaForCausalLM"), CONTEXT)


@pytest.mark.parametrize("change", [lambda mask: mask + 1.0, lambda mask: mask.add_(1.0), lambda mask: None])
def test_a_mask_with_something_added_is_refused(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ALiBi does. Without a mask, nothing says what a token sees."""
    from transformers.models.llama import modeling_llama

    original = modeling_llama.create_causal_mask
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda *a, **k: change(original(*a, **k)))
    with pytest.raises(ingot.InputError, match="layer 0 · why: its mask does not come from the mask functions"):
        Decoder(tiny_of("LlamaForCausalLM"), CONTEXT)


def test_layers_with_and_without_a_window() -> None:
    model = tiny_of("Qwen2ForCausalLM", layer_types=["full_attention", "sliding_attention"] * 2)
    assert Decoder(model, CONTEXT).windows == (0, WINDOW)
    assert worst_db(model, TOKENS) > FLOAT_DB


# ---- options of attention ----


class OtherAttention(torch.nn.Module):
    """Calls the attention of a layer with one more keyword."""

    def __init__(self, original: Any, **more: Any) -> None:
        super().__init__()
        self.original, self.more = original, more

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs, **self.more)


@pytest.mark.parametrize("option", [{"position_bias": torch.ones(1)}, {"indices": [1]}, {"temperature": 0.5}])
def test_an_unknown_option_is_refused_by_its_name(option: dict[str, Any]) -> None:
    model = tiny_of("LlamaForCausalLM")
    model.model.layers[1].self_attn = OtherAttention(model.model.layers[1].self_attn, **option)
    with pytest.raises(ingot.InputError, match=rf"LlamaForCausalLM, layer 1 · why: .*option {next(iter(option))}"):
        probe_decoder(model, CONTEXT)


@pytest.mark.parametrize("option", [{"position_bias": None}, {"use_something": False}, {"temperature": 0.0}])
def test_an_option_that_is_off_is_no_option(option: dict[str, Any]) -> None:
    model = tiny_of("LlamaForCausalLM")
    model.model.layers[1].self_attn = OtherAttention(model.model.layers[1].self_attn, **option)
    probe_decoder(model, CONTEXT)


def test_softcap_and_sinks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them these very models are wrong: the tests above would see it."""
    from ingot.llm import attention

    monkeypatch.setattr(attention, "_softcapped", lambda scores, _: scores)
    with pytest.raises(ingot.InputError, match="Gemma2ForCausalLM · where: token"):
        check_decoder(Decoder(tiny_of("Gemma2ForCausalLM"), CONTEXT), TOKENS, CHUNK)
    monkeypatch.setattr(attention, "_softmax_with_sinks", lambda scores, *_: torch.softmax(scores, -1))
    with pytest.raises(ingot.InputError, match="GptOssForCausalLM · where: token 0"):
        check_decoder(Decoder(tiny_of("GptOssForCausalLM"), CONTEXT), TOKENS, CHUNK)


def test_logits_that_are_not_numbers_are_refused() -> None:
    model = tiny_of("LlamaForCausalLM")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(ingot.InputError, match="no finite logits"):
        check_decoder(Decoder(model, CONTEXT), TOKENS, CHUNK)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_tied_heads_and_biases(tied: bool, bias: bool) -> None:
    model = tiny_of("LlamaForCausalLM", tie_word_embeddings=tied, attention_bias=bias, mlp_bias=bias)
    assert worst_db(model, TOKENS) > FLOAT_DB


# ---- positions ----

TRAINED = 16
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": TRAINED},
    "llama3": {
        "factor": 4.0, "original_max_position_embeddings": TRAINED, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "dynamic": {"factor": 4.0},
    "longrope": {
        "short_factor": [1.0] * 8, "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": TRAINED, "factor": 4.0,
    },
}  # fmt: skip


def scaled(kind: str) -> Any:
    rope = {"rope_type": kind, "rope_theta": 10000.0, **SCALINGS[kind]}
    trained = 4 * TRAINED if kind == "longrope" else TRAINED
    return tiny_of("LlamaForCausalLM", rope_parameters=rope, max_position_embeddings=trained)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_a_fixed_scaling_is_right_beyond_the_trained_length(kind: str) -> None:
    assert worst_db(scaled(kind), TOKENS) > FLOAT_DB


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_scaling_that_depends_on_the_length_is_right_up_to_it_and_refused_beyond(kind: str) -> None:
    assert worst_db(scaled(kind), TOKENS[:TRAINED], TRAINED) > FLOAT_DB
    with pytest.raises(
        ingot.InputError, match=rf"rotary_emb · why: beyond {TRAINED} tokens .* · try: --context {TRAINED}"
    ):
        Decoder(scaled(kind), TRAINED + 1)


@pytest.mark.parametrize(("architecture", "table"), [("GPT2LMHeadModel", "wpe"), ("OPTForCausalLM", "embed_positions")])
def test_learned_positions_end(architecture: str, table: str) -> None:
    model = tiny_of(architecture)  # with rows for 64 positions
    tokens = [(11 * i) % 250 + 3 for i in range(64)]
    assert worst_db(model, tokens, 64) > FLOAT_DB
    with pytest.raises(ingot.InputError, match=rf"{table} · why: .*rows for 64 tokens · try: --context 64"):
        Decoder(model, 65)


def test_the_check_needs_few_forwards() -> None:
    """The model once, three chunks, and single tokens twice: large models are slow."""
    decoder, calls = Decoder(tiny_of("LlamaForCausalLM"), 200), list[int]()
    decoder.model.register_forward_hook(lambda *_: calls.append(1))
    check_decoder(decoder, TOKENS * 5, 32)
    assert len(calls) == 1 + 3 + 2 * float_check.CHECK_SINGLES
