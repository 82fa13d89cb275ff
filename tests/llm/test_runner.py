"""A decoder whose program owns its KV cache, in ExecuTorch's own TextLLMRunner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.llm import generation
from ingot.llm.checkpoint import Checkpoint
from ingot.llm.generation import DecoderSpec, generate_tokens, open_session
from ingot.llm.pipeline import cast_decoder
from ingot.runtime.segmented_run import read_pte
from tests.support.decoders import LetterTokenizer, tiny_decoder

CONTEXT = 96
RUN = """
import sys
import executorch.kernels.quantized
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
runner = TextLLMRunner(sys.argv[1], sys.argv[2])
for turn in range(2):
    runner.generate(sys.argv[3], GenerationConfig(max_new_tokens=int(sys.argv[4]), temperature=0.0, echo=False))
    runner.reset()
"""


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> tuple[ingot.Casting, Path, Any]:
    model, folder = tiny_decoder(), tmp_path_factory.mktemp("runner")
    found = Checkpoint(model, LetterTokenizer(), "tiny")
    casting, spec = cast_decoder(
        found, target="xnnpack", weights="8da8w", context=CONTEXT, texts=["a small text " * 9], kv_cache="program"
    )
    casting.save(folder / "model.pte")
    (folder / generation.DECODER_FILE).write_text(spec.to_json())
    save_bytes(folder / "tokenizer.json")
    return casting, folder, model


def save_bytes(path: Path) -> None:
    """One token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def test_one_delegate_that_takes_tokens_and_positions(cast: tuple[ingot.Casting, Path, Any]) -> None:
    casting, folder, _ = cast
    assert casting.check.passed
    assert len(casting.delegates) == 1
    assert [i.name for i in casting.io.inputs] == ["tokens", "positions"]
    assert len(casting.io.outputs) == 1
    assert DecoderSpec.from_folder(folder).kv_cache == "program"
    ops = {o.name for o in read_pte(casting.pte, "forward").program.execution_plan[0].operators}
    assert not [o for o in ops if o.startswith("llama::")]


@pytest.mark.parametrize("prompt", [1, 31, 33, 70])
def test_the_logits_are_those_of_the_model(prompt: int, cast: tuple[ingot.Casting, Path, Any]) -> None:
    """Over borders of 32 rows, in chunks, and up to the last position of the context; again after another text."""
    _, folder, model = cast
    tokens = [(7 * i) % 250 for i in range(CONTEXT)]
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
    session = open_session(folder)
    session.prefill([(3 * i) % 250 for i in range(CONTEXT)])  # its keys and values stay in the buffers
    session.position = 0
    made = [session.prefill(tokens[:prompt]), session.prefill(tokens[prompt : prompt + 9])]
    made += [session.decode(t).clone() for t in tokens[prompt + 9 :]]
    for row, logits in zip([prompt - 1, *range(prompt + 8, CONTEXT)], made, strict=True):
        torch.testing.assert_close(logits, wanted[row], rtol=0, atol=0.05)


def test_the_official_runner(cast: tuple[ingot.Casting, Path, Any]) -> None:
    """The same greedy text as a session, twice, with a reset between; the runner prints what is printable of it."""
    from tokenizers import Tokenizer

    _, folder, _ = cast
    tokenizer, prompt = Tokenizer.from_file(str(folder / "tokenizer.json")), "hello over there, this is a prompt"
    tokens = list(generate_tokens(open_session(folder), tokenizer.encode(prompt).ids, 40))
    pieces = [tokenizer.decode([t]) for t in tokens]
    text = "".join(p for p in pieces if p.isascii() and (p.isprintable() or p.isspace()))
    assert len(text) > 5
    given = [sys.executable, "-c", RUN, str(folder / "model.pte"), str(folder / "tokenizer.json"), prompt, "40"]
    done = subprocess.run(given, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.decode("latin1").count(text) == 2, (text, done.stdout)
