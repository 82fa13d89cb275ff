"""Embedding models: the layout of sentence-transformers, its poolings, one delegate for texts of any length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ingot.cli import main
from ingot.errors import InputError
from ingot.llm import encoder_attention
from ingot.llm.embedding import EncoderSpec, TextTokenizer, encoder_inputs, open_embedding_session
from ingot.llm.encoder import OWN_ATTENTION, TextEncoder, castable_attention
from ingot.llm.encoder_checkpoint import EncoderCheckpoint, is_encoder_checkpoint, load_encoder
from ingot.llm.encoder_pipeline import cast_encoder, split_texts
from ingot.llm.pooling import TOKEN_WEIGHTS, Pooling
from ingot.llm.tokenizer_files import read_tokenizer
from tests.support.decoders import tiny_decoder
from tests.support.encoders import WORDS, add_dense, encoder_folder, tiny_encoder, word_tokenizer

MEAN = {"pooling_mode_mean_tokens": True}
TEXTS = [" ".join(WORDS[i : i + 2 + i % 11]) for i in range(16)]
UNSEEN = ("water", "the field lay under water", " ".join(WORDS[::2] * 3), "bread is not a word here")


@pytest.mark.parametrize("kind", TOKEN_WEIGHTS)
def test_poolings(kind: str) -> None:
    """Each as sentence-transformers computes it, over the tokens that the mask leaves."""
    torch.manual_seed(0)
    hidden, kept = torch.randn(1, 7, 5), 4
    x = hidden[0, :kept]
    place = torch.arange(1.0, kept + 1)[:, None]
    wanted = {
        "cls": x[0], "max": x.amax(0), "mean": x.mean(0), "mean_sqrt_len": x.sum(0) / kept**0.5,
        "weightedmean": (x * place).sum(0) / place.sum(), "lasttoken": x[-1],
    }[kind]  # fmt: skip
    torch.testing.assert_close(Pooling((kind,))(hidden, _mask(7, kept))[0], wanted)


def _mask(many: int, kept: int) -> Tensor:
    return (torch.arange(many) < kept).long()[None]


def test_poolings_by_weights_are_one_delegate(tmp_path: Path) -> None:
    """Side by side, in the order of sentence-transformers."""
    switches = ("cls_token", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    folder = encoder_folder(tmp_path, pooling={f"pooling_mode_{s}": True for s in switches}, stages=())
    found = load_encoder(folder)
    casting, spec = cast_encoder(found, target="xnnpack", texts=TEXTS)
    assert spec == EncoderSpec(context=48, width=5 * 32)
    assert len(casting.delegates) == 1, casting.host_ops
    assert casting.check.passed
    assert casting.check.judged_on == "held-out"


def test_the_maximum_is_computed_on_the_host(tmp_path: Path) -> None:
    """XNNPACK has none over a size that varies. It is after the delegate."""
    folder = encoder_folder(tmp_path, pooling={"pooling_mode": "max"}, stages=())
    casting, _ = cast_encoder(load_encoder(folder), target="xnnpack", texts=TEXTS, context=16)
    assert len(casting.delegates) == 1
    assert casting.host_ops[-1].op == "amax.default"
    assert casting.check.passed


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint, and the folder that the shell made of it: mean, a Dense module, unit length."""
    torch.manual_seed(1)
    folder, out = (tmp_path_factory.mktemp(n) for n in ("checkpoint", "out"))
    encoder_folder(folder, pooling=MEAN, stages=("Dense", "Normalize"))
    add_dense(folder, "2_Dense", nn.Linear(32, 16), "torch.nn.modules.activation.Tanh")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": True}))
    text = folder / "text.txt"
    text.write_text("\n".join(TEXTS))
    assert (
        main(["cast", "--hf", str(folder), "--target", "xnnpack", "--text", str(text), "-o", str(out), "--slim"]) == 0
    )
    return folder, out


def test_the_shell_casts_and_embeds(cast: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = cast
    capsys.readouterr()
    assert main(["embed", str(out), *UNSEEN, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    vectors = torch.tensor([r["embedding"] for r in made["results"]])
    wanted = torch.cat([_float_embedding(folder, text) for text in UNSEEN])
    assert wanted.shape == (4, 16)
    assert float(torch.cosine_similarity(vectors, wanted).min()) > 0.995
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(torch.tensor(made["similarities"]), vectors @ vectors.T, atol=1e-5, rtol=0)


def _float_embedding(folder: Path, text: str) -> Tensor:
    """By the model as transformers runs it."""
    found = load_encoder(folder)
    tokens = TextTokenizer(read_tokenizer(folder), EncoderSpec(24, 16, lower_case=True))
    with torch.no_grad():
        return TextEncoder(found).eval()(*encoder_inputs(tokens(text).ids))


def test_plain_output_has_a_line_for_each_text_and_a_table(
    cast: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, out = cast
    (tmp_path / "more.txt").write_text("THE field\n\n")
    capsys.readouterr()
    assert main(["embed", str(out), "the field", "--file", str(tmp_path / "more.txt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second, empty = (json.loads(line) for line in lines[:3])
    assert first["embedding"] == second["embedding"]  # lower case
    assert (empty["text"], len(empty["embedding"])) == ("", 16)
    assert "cosine similarity" in lines[4]
    assert lines[6].split()[-3:-1] == ["1.000", "1.000"]


def test_one_text_has_no_table(cast: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["embed", str(cast[1]), "the field"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "the field"


def test_a_text_longer_than_the_context_is_cut_with_a_note(
    cast: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = cast
    long, session = " ".join(WORDS * 4), open_embedding_session(out)
    made = session.embed(long)
    assert (made.tokens, made.cut) == (24, True)
    assert made.vector == session.embed(" ".join(WORDS * 2)).vector
    capsys.readouterr()
    assert main(["embed", str(out), "the field", long]) == 0
    assert "note: text 2 cut to 24 tokens, the context" in capsys.readouterr().out


def test_padding_changes_nothing(cast: tuple[Path, Path]) -> None:
    session = open_embedding_session(cast[1])
    ids = session.tokenizer("the field lay under water").ids
    plain, padded = (session.method([*encoder_inputs(ids, padding)])[0].clone() for padding in (0, 5))
    torch.testing.assert_close(plain, padded, atol=1e-5, rtol=0)


def test_no_text_is_refused(cast: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", str(cast[1])]) == 2
    assert "no text was given" in capsys.readouterr().err
    assert main(["embed", str(cast[0]), "a"]) == 2
    assert "no embedding model" in capsys.readouterr().err


# ---- which checkpoints ----


def test_which_checkpoints_are_encoders(tmp_path: Path) -> None:
    tiny_decoder().save_pretrained(tmp_path / "decoder")
    tiny_decoder().model.save_pretrained(tmp_path / "body")  # LlamaModel: it generates nothing, and is causal
    encoder_folder(tmp_path / "plain")
    encoder_folder(tmp_path / "masked", tiny_encoder(head="ForMaskedLM"))
    encoder_folder(tmp_path / "layout", tiny_decoder(), pooling={"pooling_mode": "lasttoken"})
    found = {p.name: is_encoder_checkpoint(p) for p in tmp_path.iterdir()}
    assert found == {"decoder": False, "body": False, "plain": True, "masked": True, "layout": True}


@pytest.mark.parametrize("kind", ["Roberta", "DistilBert"])
def test_other_architectures_are_one_delegate(kind: str, tmp_path: Path) -> None:
    casting, _ = cast_encoder(_loaded(kind, tmp_path), target="xnnpack", texts=TEXTS, context=16)
    assert casting.check.passed
    assert len(casting.delegates) == 1, [(o.op, o.source) for o in casting.host_ops]


def _loaded(kind: str, folder: Path) -> EncoderCheckpoint:
    return load_encoder(encoder_folder(folder, tiny_encoder(kind), MEAN))


@pytest.mark.parametrize(
    ("kind", "used"), [("Electra", True), ("NomicBert", True), ("ModernBert", True), ("MPNet", False)]
)
def test_our_attention_is_used_where_the_model_asks_for_one(kind: str, used: bool, tmp_path: Path) -> None:
    """It gives the same embeddings, also with padding and with sliding windows; otherwise a note says it."""
    encoder = TextEncoder(_loaded(kind, tmp_path)).eval()
    with castable_attention(encoder, [(2, 5, 6, 3), tuple(range(4, 20))]) as notes:
        assert notes == (() if used else (OWN_ATTENTION,))


def test_attention_that_differs_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_attention, "MASKED", 0.0)
    with castable_attention(TextEncoder(_loaded("Bert", tmp_path)).eval(), [(2, 5, 6, 3)]) as notes:
        assert notes == (OWN_ATTENTION,)


def test_a_model_that_does_not_export_for_any_length_is_refused(tmp_path: Path) -> None:
    told = _refused(encoder_folder(tmp_path, tiny_decoder().model, {"pooling_mode": "lasttoken"}))
    assert "it does not export for any length" in told


def test_a_plain_checkpoint_has_mean_pooling_and_a_note(tmp_path: Path) -> None:
    found = load_encoder(encoder_folder(tmp_path))
    assert found.layout.pooling.kinds == ("mean",)
    assert "no modules.json" in found.layout.notes[0]


def test_the_default_prompt_is_put_before_each_text() -> None:
    tokens = TextTokenizer(word_tokenizer().backend_tokenizer, EncoderSpec(16, 8, prompt="the river "))
    assert (
        tokens("lay").ids == TextTokenizer(word_tokenizer().backend_tokenizer, EncoderSpec(16, 8))("the river lay").ids
    )


def test_few_texts_all_calibrate_and_samples_verify() -> None:
    few, many = split_texts(TEXTS[:5]), split_texts([str(i) for i in range(20)])
    assert few.seen == (*TEXTS[:5],)
    assert not {*few.unseen} & {*few.seen}
    assert many.unseen == ("3", "7", "11", "15", "19")
    assert not {*many.unseen} & {*many.seen}


# ---- refusals ----


def _refused(folder: Path, **how: Any) -> str:
    with pytest.raises(InputError) as e:
        cast_encoder(load_encoder(folder), target="xnnpack", texts=TEXTS, **how)
    return str(e.value)


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    told = _refused(encoder_folder(tmp_path, pooling={"pooling_mode_attention_tokens": True}))
    assert "unknown pooling 'attention'" in told
    assert "1_Pooling" in told


def test_an_unknown_module_is_refused(tmp_path: Path) -> None:
    told = _refused(encoder_folder(tmp_path, pooling=MEAN, stages=("LSTM",)))
    assert "unsupported module 'LSTM'" in told
    assert "2_LSTM" in told


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path, pooling=MEAN, stages=("Dense",))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text("{}")
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    assert "pickled" in _refused(folder)


def test_code_that_is_no_activation_of_torch_is_refused(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path, pooling=MEAN, stages=("Dense",))
    add_dense(folder, "2_Dense", nn.Linear(32, 16), "os.system")
    assert "unsupported activation 'os.system'" in _refused(folder)


def test_a_context_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    assert "--context 48" in _refused(encoder_folder(tmp_path / "bert", pooling=MEAN), context=49)
    roberta = encoder_folder(tmp_path / "roberta", tiny_encoder("Roberta"), MEAN)
    assert "--context 47" in _refused(roberta, context=48)  # positions begin after that of the padding token


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = encoder_folder(tmp_path, pooling=MEAN)
    state = load_file(folder / "model.safetensors")
    state = {k: v.clone() for k, v in state.items() if "layer.1.attention.self.key" not in k and "pooler" not in k}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    told = _refused(folder)
    assert "lacks weights" in told
    assert "encoder.layer.1.attention.self.key" in told
    assert "pooler" not in told
