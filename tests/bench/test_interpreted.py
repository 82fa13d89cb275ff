"""bench.language.interpreted: a Vulkan decoder's bytes generate the tokens of its quantized graph."""

from __future__ import annotations

from pathlib import Path

from bench.language import interpreted
from ingot.llm.checkpoint import Checkpoint
from ingot.llm.generation import DECODER_FILE, generate_tokens
from ingot.llm.pipeline import cast_decoder
from tests.support.decoders import LetterTokenizer, tiny_decoder
from tests.support.eager_decoder import QuantizedGraphSession
from tests.support.vulkan import interpreted_session


def test_tokens_are_those_of_the_quantized_graph(tmp_path: Path) -> None:
    found = Checkpoint(tiny_decoder(), LetterTokenizer(), "tiny")
    casting, spec = cast_decoder(found, target="vulkan", weights="4w", context=48, texts=["a text to round with"])
    casting.save(tmp_path / "model.pte")
    (tmp_path / DECODER_FILE).write_text(spec.to_json())
    sessions = interpreted.open_session(tmp_path), interpreted_session(tmp_path), QuantizedGraphSession(casting, spec)
    first, *others = (list(generate_tokens(session, [5, 9, 33], 12)) for session in sessions)
    assert others == [first, first]
    assert len(first) == 12
