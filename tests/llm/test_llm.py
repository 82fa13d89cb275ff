"""A decoder of `transformers`, cast as 8da4w into a folder that generates text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.cli import main
from ingot.llm import generation
from ingot.llm.checkpoint import Checkpoint, load_checkpoint
from ingot.llm.decoder import Decoder
from ingot.llm.generation import DecoderSession, DecoderSpec, generate_tokens, open_session
from ingot.llm.pipeline import SAMPLE_NOTE, cast_decoder, decode_batches
from ingot.llm.sample_text import SAMPLE_TEXTS
from ingot.runtime.segmented_run import read_pte
from ingot.verify.metrics import sqnr
from ingot.weight_only.hessian import record_linear_inputs
from tests.support.decoders import ARCHITECTURES, LetterTokenizer, tiny_decoder, transformers
from tests.support.eager_decoder import QuantizedGraphSession
from tests.support.tiny_architectures import tiny_of


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_gives_the_logits_of_transformers(architecture: str) -> None:
    """Token by token with our KV cache, and all tokens at once."""
    model, tokens = tiny_decoder(architecture), [5, 9, 33, 120, 7, 64]
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
        decoder = Decoder(model, 8)
        steps = decode_batches(decoder, tokens)
        made = torch.cat([decoder(*step)[0] for step in steps])
        whole = decoder(*decoder.inputs_for(tokens, decoder.empty_cache(8), 0))[0]
        again = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole[0], wanted[-1], rtol=1e-4, atol=1e-4)
    assert torch.equal(again, wanted)  # the user's model is unchanged


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM"])
def test_the_kv_cache_grows_with_the_text(architecture: str) -> None:
    """A session grows its cache, and gives the logits of transformers at every capacity, also beyond a window of 8."""
    model, tokens, context = tiny_of(architecture), [(7 * i) % 250 for i in range(70)], 80
    decoder = Decoder(model, context)
    spec = DecoderSpec(context, decoder.layers, decoder.heads, windows=decoder.windows)
    session = DecoderSession(EagerMethod(decoder), spec)
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
        made = torch.stack([session.decode(t) for t in tokens])
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    assert session.cache[0].shape == (2, 16, 80)  # capacities 32, 64, and the context


class EagerMethod:
    """The float decoder, called like a method of the runtime."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def __call__(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self.decoder(*inputs)


def test_calibration_records_several_rows_of_the_head() -> None:
    """The other linears have the same statistics as in a step."""
    decoder, tokens = Decoder(tiny_decoder(), 8), [5, 9, 33, 120, 7, 64]
    with record_linear_inputs(decoder) as recorded:
        assert decoder.full_forward(tokens).shape == (6, 256)
    with record_linear_inputs(decoder) as wanted:
        assert decoder(*decoder.inputs_for(tokens, decoder.empty_cache(8), 0))[0].shape == (1, 256)
    assert recorded.counts.pop("model.lm_head") == 6
    assert wanted.counts.pop("model.lm_head") == 1
    for name in recorded.counts:
        made, expected = (r.statistics_of(name).hessian for r in (recorded, wanted))
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> tuple[ingot.Casting, Path, Any]:
    model = tiny_decoder()
    found = Checkpoint(model, LetterTokenizer(), "tiny")
    texts = ["a small text to round weights with", "and another one"]
    casting, spec = cast_decoder(
        found, target="xnnpack", weights="8da4w,embedding_bits=8", context=48, texts=texts, kv_cache="caller"
    )
    folder = tmp_path_factory.mktemp("tiny")
    casting.save(folder / "model.pte")
    (folder / generation.DECODER_FILE).write_text(spec.to_json())
    return casting, folder, model


def test_a_decoder_is_verified_on_other_text(cast: tuple[ingot.Casting, Path, Any]) -> None:
    """Every step that is given. Its check says that it was judged on text that its weights were rounded with."""
    casting, _, model = cast
    assert casting.check is not None
    assert casting.check.judged_on == "calibration"
    steps = decode_batches(Decoder(model, 48), [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46])
    check = ingot.verify(casting, iter(steps))
    assert check.passed
    assert check.batches == 11


def test_one_delegate(cast: tuple[ingot.Casting, Path, Any]) -> None:
    casting, _, _ = cast
    assert len(casting.delegates) == 1
    kinds = [o.op.removesuffix(".default").rpartition(".")[2] for o in casting.host_ops]
    assert kinds == ["embedding_byte", "index_select", "index_select"]  # all before the delegate
    assert casting.check.outputs[0].faithful_db > 30
    assert len(casting.check.outputs) == 10  # in each method: logits, keys and values of two layers


def test_greedy_tokens_are_those_of_the_quantized_model(cast: tuple[ingot.Casting, Path, Any]) -> None:
    casting, folder, _ = cast
    made, speed = generation.generate_timed(open_session(folder), [5, 9, 33], 40)
    quantized = QuantizedGraphSession(casting, DecoderSpec.from_folder(folder))
    assert made == list(generate_tokens(quantized, [5, 9, 33], 40))
    assert (speed.prompt, speed.made) == (3, 40)
    assert speed.tokens_per_second > 0


def test_prefill_in_chunks(cast: tuple[ingot.Casting, Path, Any]) -> None:
    """A second method of the same file gives the logits and cache of token-by-token decoding, and shares its weights."""
    casting, folder, _ = cast
    prompt = [(7 * i) % 250 for i in range(41)]
    chunked, single = open_session(folder), open_session(folder)
    single.spec = dataclasses.replace(single.spec, prefill=0)
    assert chunked.spec.prefill == 32
    torch.testing.assert_close(chunked.prefill(prompt), single.prefill(prompt), rtol=0, atol=0.05)
    for a, b in zip(chunked.cache, single.cache, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.05)
    assert any("method prefill: 1 delegate, 3 host ops, shared weights" in n for n in casting.notes)
    file = read_pte(casting.pte, "prefill")
    stated = {k: sum(n.bytes for n in casting.layers if n.kind == k) for k in ("linear", "embedding")}
    stored = sum(len(b) for b in file.named_data.buffers)
    assert stated["linear"] < stored < 1.3 * stated["linear"]  # the rest: norms
    rotary = 2 * 48 * 16 * 4  # cosines and sines
    assert sum(len(b.storage) for b in file.program.constant_buffer) == stated["embedding"] + rotary


def test_windows_and_softcap_on_the_runtime(tmp_path: Path) -> None:
    """Two masks: the artefact gives the logits of the quantized graph, also where tokens have left the window of 8."""
    found = Checkpoint(tiny_of("Gemma2ForCausalLM", initializer_range=0.02), LetterTokenizer(), "tiny")
    text = ["some text. " * 8]
    casting, spec = cast_decoder(found, target="xnnpack", weights="8da8w", context=40, texts=text, kv_cache="caller")
    casting.save(tmp_path / "model.pte")
    (tmp_path / generation.DECODER_FILE).write_text(spec.to_json())
    assert (spec.windows, len(casting.delegates)) == ((0, 8), 1)
    made, unlimited = open_session(tmp_path), open_session(tmp_path)
    unlimited.spec = dataclasses.replace(spec, windows=(0, 0))
    tokens, quantized = (
        [(7 * i) % 250 for i in range(40)],
        QuantizedGraphSession(casting, DecoderSpec.from_folder(tmp_path)),
    )
    rows = [tuple(session.decode(t).clone() for session in (quantized, made, unlimited)) for t in tokens]
    assert min(sqnr(wanted, logits) for wanted, logits, _ in rows) > 25
    assert max(sqnr(wanted, other) for wanted, _, other in rows[8:]) < 25  # the window matters
    assert torch.equal(open_session(tmp_path).prefill(tokens).argmax(), rows[-1][1].argmax())


def test_the_sample_is_compared_with_the_model_before_the_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.llm.attention_probe._window", lambda *_: 0)
    found = Checkpoint(tiny_of("MistralForCausalLM"), LetterTokenizer(), "tiny")
    with pytest.raises(ingot.InputError, match=r"MistralForCausalLM · where: token 8 of the sample, a prompt of"):
        cast_decoder(found, target="xnnpack", weights="8da4w", context=48, texts=["a text beyond the window"])


def test_a_mixture_of_experts_is_refused() -> None:
    found = Checkpoint(tiny_of("MixtralForCausalLM"), LetterTokenizer(), "tiny")
    with pytest.raises(ingot.InputError, match=r"MixtralForCausalLM, .*experts.* several matrices"):
        cast_decoder(found, target="xnnpack", weights="8da4w", context=48)


def test_a_context_beyond_the_trained_one_is_noted() -> None:
    found = Checkpoint(tiny_decoder(), LetterTokenizer(), "tiny")
    casting, _ = cast_decoder(found, target="xnnpack", weights="8da4w,method=nearest", context=96)
    assert "context of 96 tokens: the model was trained on 64 (max_position_embeddings)" in casting.notes


def test_linears_that_store_their_weight_transposed_are_quantized() -> None:
    """GPT-2: four in each of four blocks, the head, and two embeddings; all with calibration statistics."""
    model = tiny_of("GPT2LMHeadModel")
    with record_linear_inputs(model) as recorded, torch.no_grad():
        model(torch.tensor([[5, 9, 33]]))
    assert len({*recorded.counts, *recorded.aliases}) == 17
    casting, _ = cast_decoder(
        Checkpoint(model, LetterTokenizer(), "tiny"), target="xnnpack", weights="8da4w", context=32
    )
    assert sorted(n.kind for n in casting.layers) == ["embedding"] * 2 + ["linear"] * 17


def test_the_context_ends(cast: tuple[ingot.Casting, Path, Any]) -> None:
    _, folder, _ = cast
    assert len(list(generate_tokens(open_session(folder), [1] * 46, 20))) == 2
    with pytest.raises(ingot.IngotError, match="it has 49 tokens, the context is 48"):
        list(generate_tokens(open_session(folder), [1] * 49, 1))
    with pytest.raises(ingot.IngotError, match="no tokens"):
        list(generate_tokens(open_session(folder), [], 1))


# ---- checkpoints ----


def saved(folder: Path) -> Path:
    tiny_decoder().save_pretrained(folder, safe_serialization=True)
    return folder


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match="cannot be read"):
        load_checkpoint(saved(tmp_path))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match=r"config\.json is missing"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ingot.IngotError, match=r"no \.safetensors"):
        load_checkpoint(tmp_path)
    with pytest.raises(ingot.IngotError, match="no language model in"):
        load_checkpoint(tmp_path / "net.gguf")


def test_an_unknown_architecture(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "abacus", "architectures": ["Abacus"]}))
    with pytest.raises(ingot.IngotError, match=r"cannot be read.*abacus"):
        load_checkpoint(folder)


def test_a_truncated_file(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ingot.IngotError, match="cannot be read"):
        load_checkpoint(folder)


def with_word_tokenizer(folder: Path) -> Path:
    """A checkpoint whose tokenizer has one token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    made.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}w7"
    made.save_pretrained(folder)
    return saved(folder)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Hugging Face folder in, text out."""
    (tmp_path / "some.txt").write_text("w5 w9 w33 w7 w8 w200 w3 " * 8)
    given = ["cast", "--hf", str(with_word_tokenizer(tmp_path / "net")), "--target", "xnnpack", "--context", "32"]
    assert main([*given, "--text", str(tmp_path / "some.txt"), "-o", str(tmp_path / "out")]) == 0
    assert "1 delegate" in capsys.readouterr().out
    assert {"model.pte", "tokenizer.json", "decoder.json", "plan.json"} <= {
        f.name for f in (tmp_path / "out").iterdir()
    }
    assert main(["generate", str(tmp_path / "out"), "w5 w9 w33", "--tokens", "5"]) == 0
    output = capsys.readouterr().out
    assert "5 tokens, " in output
    assert output.startswith("w")
    assert main(["generate", str(tmp_path / "out"), "w5 w9 w33", "--tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 5
    (tmp_path / "prompts.txt").write_text("w5 w9\n\nw33\n")
    assert main(["generate", str(tmp_path / "out"), "--prompts", str(tmp_path / "prompts.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [r["prompt_tokens"] for r in found] == [2, 1]
    assert [r["ended"] for r in found] == ["context", "context"]
    how = ["--temperature", "1.5", "--seed", "3", "--max-tokens", "4", "--json"]
    assert main(["chat", str(tmp_path / "out"), "--message", "w5 w9", "--message", "w8", *how]) == 0
    first, second = json.loads(capsys.readouterr().out)["answers"]
    assert (first["prompt_tokens"], first["tokens"], second["ended"]) == (3, 4, "length")
    assert second["prompt_tokens"] < 3 + 4 + 2  # without those that the cache holds
    refusals(tmp_path, capsys)


def refusals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(folder / "out")
    assert main(["generate", out, "w5 " * 40]) == 2
    assert main(["generate", out]) == 2
    assert main(["generate", out, "w5", "--top-p", "7"]) == 2
    (folder / "out" / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    assert main(["chat", out, "--message", "w5"]) == 2
    (folder / "out" / "tokenizer.json").unlink()
    assert main(["generate", out, "w5"]) == 2
    said = capsys.readouterr().err
    for words in (
        "it has 40 tokens, the context is 32", "a prompt is needed", "invalid top_p 7",
        "the chat template fails · where: messages of user · why: TemplateError: roles must alternate",
        "has no tokenizer.json",
    ):  # fmt: skip
        assert words in said


def test_the_command_line_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--target", "xnnpack", "-o", str(tmp_path / "out")]
    assert main(["cast", "--hf", str(tmp_path / "nowhere"), *out]) == 2
    assert main(["cast", "net.py:build", "--hf", str(tmp_path), *out]) == 2
    assert main(["cast", *out]) == 2
    assert main(["generate", str(tmp_path), "hello"]) == 2
    assert "no model was named" in capsys.readouterr().err


def test_a_folder_without_a_decoder(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match="no decoder in"):
        open_session(tmp_path)


def test_without_text_the_model_writes_its_own() -> None:
    """The same in every cast. A note asks for representative text."""
    found = Checkpoint(tiny_decoder(), LetterTokenizer(), "tiny")
    default, _ = cast_decoder(found, target="xnnpack", weights="8da4w", context=64)
    explicit, _ = cast_decoder(found, target="xnnpack", weights="8da4w", context=64, texts=list(SAMPLE_TEXTS))
    again, _ = cast_decoder(found, target="xnnpack", weights="8da4w", context=64)
    assert default.pte == again.pte
    assert default.pte != explicit.pte
    assert SAMPLE_NOTE in default.notes
    assert SAMPLE_NOTE not in explicit.notes
    nearest, _ = cast_decoder(found, target="xnnpack", weights="8da4w,method=nearest", context=64)
    assert nearest.pte != default.pte
    assert default.check.outputs[0].sqnr_db > nearest.check.outputs[0].sqnr_db


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 1 << 31},
        {"layers": 0},
        {"context": -1},
        {"heads": {"many": 1 << 40, "sharing": 1, "size": 4}},
        {"stops": [-3]},
    ],
)
def test_a_spec_that_no_decoder_has_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    """Before a KV cache of that size is allocated."""
    good = {"context": 16, "layers": 2, "heads": {"many": 2, "sharing": 1, "size": 4}}
    (tmp_path / "decoder.json").write_text(json.dumps(good))
    assert DecoderSpec.from_folder(tmp_path).layers == 2
    (tmp_path / "decoder.json").write_text(json.dumps({**good, **change}))
    with pytest.raises(ingot.InputError, match="no decoder in"):
        DecoderSpec.from_folder(tmp_path)
