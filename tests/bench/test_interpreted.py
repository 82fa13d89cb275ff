"""bench.language.interpreted: a Vulkan decoder's bytes generate the tokens of its quantized graph."""

from __future__ import annotations

from pathlib import Path

from bench.language import interpreted
from ingot.llm import checkpoint, generation, pipeline
from tests.support.decoders import Letters, tiny
from tests.support.eager_decoder import EagerSession
from tests.support.vulkan import interpreted_session


def test_tokens_are_those_of_the_quantized_graph(tmp_path: Path) -> None:
    found = checkpoint.Checkpoint(tiny(), Letters(), "tiny")
    casting, shape = pipeline.cast(found, target="vulkan", weights="4w", context=48, texts=["a text to round with"])
    casting.save(tmp_path / "model.pte")
    (tmp_path / generation.FILE).write_text(shape.to_json())
    sessions = interpreted.open_session(tmp_path), interpreted_session(tmp_path), EagerSession(casting, shape)
    first, *others = (list(generation.generate(session, [5, 9, 33], 12)) for session in sessions)
    assert others == [first, first]
    assert len(first) == 12
