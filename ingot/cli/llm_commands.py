"""The verbs for language models: a checkpoint in, a folder that generates text out; and text."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from ingot.cli.files import check_folder, read_bytes, write_folders
from ingot.cli.output import OK, WRONG, Answer, watched
from ingot.core.progress import Progress, Steps
from ingot.errors import InputError
from ingot.llm import checkpoint
from ingot.llm import generation as text
from ingot.llm import pipeline as road
from ingot.result.casting import Casting
from ingot.result.report.text import summary, summary_facts


def cast(options: argparse.Namespace, files: Any) -> Answer:
    """`files` makes the usual files of a casting."""
    check_folder(options.output)
    if options.model is not None or len(options.target) != 1:
        raise InputError(
            "--hf names the model, for one target at a time", hint="ingot cast --hf DIR --target xnnpack -o out/"
        )
    texts = [read_bytes(options.text).decode(errors="replace")] if options.text else []
    progress = Progress(quiet=options.quiet)
    with progress.step("load"):
        found = checkpoint.load(options.hf)
    how = {"weights": options.weights or "8da4w", "context": options.context, "texts": texts}
    casting, shape = road.cast(
        found, target=options.target[0], steps=Steps(progress), on_mismatch=options.on_mismatch, **how
    )
    beside = {text.FILE: shape.to_json().encode(), **_tokenizer(found.tokenizer)}
    write_folders({options.output: {**files(casting, options.report), **beside}})
    return _answer(casting, options)


def _answer(casting: Casting, options: argparse.Namespace) -> Answer:
    good = casting.check is not None and casting.check.passed
    said = "\n".join([summary(casting), *casting.plan.notes, f"written to {options.output}"])
    return OK if good else WRONG, summary_facts(casting), "" if options.quiet else said


def _tokenizer(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="ingot-tokenizer-") as name:
        tokenizer.save_pretrained(name)
        return {f.name: f.read_bytes() for f in Path(name).iterdir() if f.is_file()}


def generate(options: argparse.Namespace) -> Answer:
    """On a terminal tokens appear as they are made; speed and memory at the end."""
    letters = _letters(options.folder)
    torch.set_num_threads(1)  # the runtime has threads of its own, and torch's would spin beside them
    session, prompt = text.open_session(options.folder), letters.encode(options.prompt).ids
    made, clock = list[int](), text.Clock(len(prompt))
    shown = "stdout" in watched and sys.stderr.isatty() and not options.json  # else it is in the answer
    for token in text.generate(session, prompt, options.tokens):
        made.append(token)
        clock.tick()
        if shown:
            _show(letters, made)
    speed = clock.speed
    facts = {"text": letters.decode(made), "tokens": len(made), "tokens_per_second": speed.tokens_per_second}
    took = f"prompt of {speed.prompt} in {speed.prompt_seconds:.2f} s, {text.memory()}"
    said = "" if shown else facts["text"]
    return OK, facts, f"{said}\n\n{speed.made} tokens, {speed.tokens_per_second:.1f} a second; {took}"


def _letters(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise InputError("text needs tokenizers", why=str(e), hint="pip install tokenizers") from e
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as e:  # the library raises nothing narrower
        raise InputError(f"{folder} has no tokenizer.json", why=str(e), hint="cast it with `ingot cast --hf`") from e


def _show(letters: Any, made: list[int]) -> None:
    """What the last token adds; half a character waits for its other half."""
    before, now = letters.decode(made[:-1]), letters.decode(made)
    if not now.endswith("\ufffd"):
        sys.stderr.write(now.removeprefix(before.rstrip("\ufffd")))
        sys.stderr.flush()
