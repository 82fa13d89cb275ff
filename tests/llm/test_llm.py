"""A decoder of `transformers` through 8da4w to a folder that generates text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.cli import main
from ingot.llm import checkpoint
from ingot.llm import generation as text
from ingot.llm import pipeline as road
from ingot.llm.decoder import Decoder
from ingot.llm.sample_text import SAMPLE
from ingot.runtime.segments import read
from ingot.weight_only.hessian import watching
from tests.support.decoders import KINDS, Letters, tiny, transformers
from tests.support.eager_decoder import EagerSession


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_model(kind: str) -> None:
    """Token after token with our keys and values, or all at once: the logits of transformers."""
    model, tokens = tiny(kind), [5, 9, 33, 120, 7, 64]
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
        decoder = Decoder(model, 8)
        steps = road.steps_of(decoder, tokens)
        made = torch.cat([decoder(*step)[0] for step in steps])
        whole = decoder(*decoder.given(tokens, decoder.empty(8), 0))[0]
        again = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole[0], wanted[-1], rtol=1e-4, atol=1e-4)
    assert torch.equal(again, wanted)  # the user's model is as it was


def test_room_grows_with_the_text() -> None:
    """A session asks for more room as it goes on, and gives the logits of transformers all the while."""
    model, tokens, context = tiny(), [(7 * i) % 250 for i in range(70)], 80
    decoder = Decoder(model, context)
    session = text.Session(Plain(decoder), text.Shape(context, decoder.layers, decoder.heads))
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
        made = torch.stack([session.feed(t) for t in tokens])
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    assert session.past[0].shape == (2, 16, 80)  # three rooms: 32, 64, and all that there is


class Plain:
    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def __call__(self, given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self.decoder(*given)


def test_a_head_is_looked_at_for_more_than_ends_of_texts() -> None:
    """And every linear reads what it would read in a step."""
    decoder, tokens = Decoder(tiny(), 8), [5, 9, 33, 120, 7, 64]
    with watching(decoder) as seen:
        assert decoder.read(tokens).shape == (6, 256)
    with watching(decoder) as wanted:
        assert decoder(*decoder.given(tokens, decoder.empty(8), 0))[0].shape == (1, 256)
    assert seen.counts.pop("model.lm_head") == 6
    assert wanted.counts.pop("model.lm_head") == 1
    for name in seen.counts:
        torch.testing.assert_close(seen.of(name).second, wanted.of(name).second, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> tuple[ingot.Casting, Path, Any]:
    model = tiny()
    found = checkpoint.Checkpoint(model, Letters(), "tiny")
    texts = ["a small text to round weights with", "and another one"]
    casting, shape = road.cast(found, target="xnnpack", weights="8da4w", context=48, texts=texts)
    folder = tmp_path_factory.mktemp("tiny")
    casting.save(folder / "model.pte")
    (folder / text.FILE).write_text(shape.to_json())
    return casting, folder, model


def test_one_delegate(cast: tuple[ingot.Casting, Path, Any]) -> None:
    casting, _, _ = cast
    assert len(casting.delegates) == 1
    kinds = [o.op.removesuffix(".default").rpartition(".")[2] for o in casting.host_ops]
    assert kinds == ["embedding_byte", "index_select", "index_select"]  # all before the delegate
    assert casting.check.outputs[0].faithful_db > 30
    assert len(casting.check.outputs) == 10  # of both methods: logits, keys and values of two layers


def test_greedy_tokens_are_those_of_the_quantized_model(cast: tuple[ingot.Casting, Path, Any]) -> None:
    casting, folder, _ = cast
    made, speed = text.timed(text.open_session(folder), [5, 9, 33], 40)
    assert made == list(text.generate(EagerSession(casting, text.Shape.of(folder)), [5, 9, 33], 40))
    assert (speed.prompt, speed.made) == (3, 40)
    assert speed.tokens_per_second > 0


def test_a_prompt_is_read_in_strides(cast: tuple[ingot.Casting, Path, Any]) -> None:
    """By a second method of the same file: the text goes on as it does token after token, and no weight is there twice."""
    casting, folder, _ = cast
    prompt = [(7 * i) % 250 for i in range(41)]
    strides, single = text.open_session(folder), text.open_session(folder)
    single.shape = dataclasses.replace(single.shape, prefill=0)
    assert strides.shape.prefill == 32
    torch.testing.assert_close(strides.read(prompt), single.read(prompt), rtol=0, atol=0.05)
    for a, b in zip(strides.past, single.past, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.05)
    assert any("method prefill: 1 delegate, 3 ops on the host, the same weights" in n for n in casting.notes)
    file = read(casting.pte, "prefill")
    said = {k: sum(n.bytes for n in casting.layers if n.kind == k) for k in ("linear", "embedding")}
    stored = sum(len(b) for b in file.named_data.buffers)
    assert said["linear"] < stored < 1.3 * said["linear"]  # the rest: norms
    angles = 2 * 48 * 16 * 4  # cosines and sines
    assert sum(len(b.storage) for b in file.program.constant_buffer) == said["embedding"] + angles


def test_the_context_ends(cast: tuple[ingot.Casting, Path, Any]) -> None:
    _, folder, _ = cast
    assert len(list(text.generate(text.open_session(folder), [1] * 46, 20))) == 2
    with pytest.raises(ingot.IngotError, match="it has 49 tokens, the program holds 48"):
        list(text.generate(text.open_session(folder), [1] * 49, 1))
    with pytest.raises(ingot.IngotError, match="no tokens"):
        list(text.generate(text.open_session(folder), [], 1))


# ---- checkpoints ----


def saved(folder: Path) -> Path:
    tiny().save_pretrained(folder, safe_serialization=True)
    return folder


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match="cannot be read"):
        checkpoint.load(saved(tmp_path))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match=r"config\.json is not there"):
        checkpoint.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ingot.IngotError, match=r"no \.safetensors"):
        checkpoint.load(tmp_path)
    with pytest.raises(ingot.IngotError, match="holds no language model"):
        checkpoint.load(tmp_path / "net.gguf")


def test_an_unknown_architecture(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "abacus", "architectures": ["Abacus"]}))
    with pytest.raises(ingot.IngotError, match=r"cannot be read.*abacus"):
        checkpoint.load(folder)


def test_an_architecture_of_another_kind() -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64)
    with pytest.raises(ingot.IngotError, match="GPT2LMHeadModel has no rotary embeddings"):
        Decoder(transformers.GPT2LMHeadModel(config), 8)


def test_a_truncated_file(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ingot.IngotError, match="cannot be read"):
        checkpoint.load(folder)


def words(folder: Path) -> Path:
    """A checkpoint with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = Tokenizer(models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    letters.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="w0").save_pretrained(folder)
    return saved(folder)


def test_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of Hugging Face's kind in, text out."""
    (tmp_path / "some.txt").write_text("w5 w9 w33 w7 w8 w200 w3 " * 8)
    given = ["cast", "--hf", str(words(tmp_path / "net")), "--target", "xnnpack", "--context", "32"]
    assert main([*given, "--text", str(tmp_path / "some.txt"), "-o", str(tmp_path / "out")]) == 0
    assert "1 delegate" in capsys.readouterr().out
    assert {"model.pte", "tokenizer.json", "decoder.json", "plan.json"} <= {
        f.name for f in (tmp_path / "out").iterdir()
    }
    assert main(["generate", str(tmp_path / "out"), "w5 w9 w33", "--tokens", "5"]) == 0
    said = capsys.readouterr().out
    assert "5 tokens, " in said
    assert said.startswith("w")
    assert main(["generate", str(tmp_path / "out"), "w5 w9 w33", "--tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 5


def test_the_shell_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--target", "xnnpack", "-o", str(tmp_path / "out")]
    assert main(["cast", "--hf", str(tmp_path / "nowhere"), *out]) == 2
    assert main(["cast", "net.py:build", "--hf", str(tmp_path), *out]) == 2
    assert main(["cast", *out]) == 2
    assert main(["generate", str(tmp_path), "hello"]) == 2
    assert "no model was named" in capsys.readouterr().err


def test_a_folder_that_is_no_decoder(tmp_path: Path) -> None:
    with pytest.raises(ingot.IngotError, match="holds no decoder"):
        text.open_session(tmp_path)


def test_without_a_text_a_sample_is_read(tmp_path: Path) -> None:
    """And the user is told that another would do better."""
    found = checkpoint.Checkpoint(tiny(), Letters(), "tiny")
    alone, _ = road.cast(found, target="xnnpack", weights="8da4w", context=64)
    told, _ = road.cast(found, target="xnnpack", weights="8da4w", context=64, texts=list(SAMPLE))
    assert alone.pte == told.pte
    assert road.UNTOLD in alone.notes
    assert road.UNTOLD not in told.notes
    nearest, _ = road.cast(found, target="xnnpack", weights="8da4w,method=nearest", context=64)
    assert nearest.pte != alone.pte
    assert all(alone.check.outputs[i].sqnr_db > nearest.check.outputs[i].sqnr_db for i in (0, 1))
