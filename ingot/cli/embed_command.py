"""The command that runs an embedding model: texts in, vectors and their cosine similarities out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from ingot.cli.files import read_bytes
from ingot.cli.output import OK, Answer
from ingot.cli.tables import RIGHT, table
from ingot.errors import InputError
from ingot.llm.embedding import TextEmbedding, cosine_similarities, open_embedding_session

SHOWN = 40  # characters of a text in the table
MOST_COMPARED = 20  # texts: a larger table is read by nobody


def embed_command(options: argparse.Namespace) -> Answer:
    texts = [*options.text, *(_lines_of_file(options.file) if options.file else [])]
    if not texts:
        raise InputError("no text was given", hint='ingot embed out/ "a sentence" "another", or --file FILE')
    torch.set_num_threads(1)  # the runtime has threads of its own, and torch's would spin beside them
    session = open_embedding_session(options.folder)
    made = [session.embed(text) for text in texts]
    similar = cosine_similarities([m.vector for m in made]) if 1 < len(made) <= MOST_COMPARED else []
    notes = _notes(made, session.spec.context)
    facts = {"results": [m.facts for m in made], "similarities": similar, "notes": notes}
    return OK, facts, "\n".join([*map(_line, made), *([""] if similar else []), *_table(made, similar), *notes])


def _lines_of_file(file: Path) -> list[str]:
    """Blank lines too: an embedding for each line."""
    return read_bytes(file).decode(errors="replace").splitlines()


def _line(made: TextEmbedding) -> str:
    return json.dumps({"text": made.text, "embedding": [*made.vector]}, ensure_ascii=False)


def _table(made: list[TextEmbedding], similar: list[list[float]]) -> list[str]:
    headings = ["cosine similarity", *(f"{RIGHT}{i}" for i in range(1, len(similar) + 1))]
    rows = [[f"{i + 1} {_short(made[i].text)}", *(f"{x:.3f}" for x in row)] for i, row in enumerate(similar)]
    return [table(headings, rows)] if similar else []


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _notes(made: list[TextEmbedding], context: int) -> list[str]:
    """Which texts were cut, by their number."""
    cut = [str(i) for i, m in enumerate(made, 1) if m.cut]
    which = f"text{'s' * (len(cut) > 1)} {', '.join(cut)}"
    return [f"note: {which} cut to {context} tokens, the context; cast with a larger --context"] if cut else []
