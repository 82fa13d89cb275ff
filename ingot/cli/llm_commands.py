"""Commands for language models: cast a checkpoint, generate text."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ingot.cli.files import check_folder, read_bytes
from ingot.cli.inputs import refuse_ignored_options
from ingot.cli.output import OK, WRONG, Answer, watched
from ingot.core.atomic_file import write_folders
from ingot.core.progress import Progress, Steps
from ingot.errors import InputError
from ingot.llm import generation
from ingot.llm.checkpoint import load_checkpoint
from ingot.llm.pipeline import cast_decoder
from ingot.result.casting import Casting
from ingot.result.report.text import summary, summary_facts

# Options of other casts, which --hf has no use for.
UNUSED = {
    "model": "MODEL", "calibrate": "--calibrate", "validation": "--validation", "mean": "--mean", "std": "--std",
    "recipe": "--recipe", "scenario": "--scenario", "dynamic_shapes": "--dynamic-shapes",
}  # fmt: skip


def cast_hf(options: argparse.Namespace, files: Callable[[Casting, argparse.Namespace], dict[str, bytes]]) -> Answer:
    """`files` makes the usual files of a casting."""
    refuse_ignored_options(options, "--hf names the model, and --text is its data", UNUSED)
    check_folder(options.output)
    if len(options.target) != 1:
        raise InputError("a language model is cast for one target at a time", hint="--target xnnpack")
    texts = [read_bytes(options.text).decode(errors="replace")] if options.text else []
    progress = Progress(quiet=options.quiet)
    with progress.step("load"):
        found = load_checkpoint(options.hf)
    casting, spec = cast_decoder(
        found, target=options.target[0], steps=Steps(progress), on_mismatch=options.on_mismatch,
        weights=options.weights or "8da4w", context=options.context or 256, texts=texts,
        kv_cache=options.kv_cache or "caller",
    )  # fmt: skip
    more = {generation.DECODER_FILE: spec.to_json().encode(), **_tokenizer(found.tokenizer)}
    write_folders({options.output: {**files(casting, options), **more}})
    return _answer(casting, options)


def _answer(casting: Casting, options: argparse.Namespace) -> Answer:
    good = casting.check is not None and casting.check.passed
    said = f"{summary(casting, options.verbose)}\nwritten to {options.output}"
    return OK if good else WRONG, summary_facts(casting), "" if options.quiet else said


def _tokenizer(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="ingot-tokenizer-") as name:
        tokenizer.save_pretrained(name)
        return {f.name: f.read_bytes() for f in Path(name).iterdir() if f.is_file()}


def generate_command(options: argparse.Namespace) -> Answer:
    """On a terminal tokens appear as they are made; speed and memory at the end."""
    tokenizer = _tokenizer_of(options.folder)
    torch.set_num_threads(1)  # the runtime has threads of its own, and torch's would spin beside them
    session, prompt = generation.open_session(options.folder), tokenizer.encode(options.prompt).ids
    made, timer = list[int](), generation.TokenTimer(len(prompt))
    shown = "stdout" in watched and sys.stderr.isatty() and not options.json  # else it is in the answer
    for token in generation.generate_tokens(session, prompt, options.tokens):
        made.append(token)
        timer.tick()
        if shown:
            _show(tokenizer, made)
    speed = timer.speed
    facts = {"text": tokenizer.decode(made), "tokens": len(made), "tokens_per_second": speed.tokens_per_second}
    took = f"prompt of {speed.prompt} in {speed.prompt_seconds:.2f} s, {generation.peak_memory()}"
    said = "" if shown else facts["text"]
    return OK, facts, f"{said}\n\n{speed.made} tokens, {speed.tokens_per_second:.1f} a second; {took}"


def _tokenizer_of(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise InputError("text needs tokenizers", why=str(e), hint="pip install tokenizers") from e
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as e:  # the library raises nothing narrower
        raise InputError(f"{folder} has no tokenizer.json", why=str(e), hint="cast it with `ingot cast --hf`") from e


def _show(tokenizer: Any, made: list[int]) -> None:
    """What the last token adds; half a character waits for its other half."""
    before, now = tokenizer.decode(made[:-1]), tokenizer.decode(made)
    if not now.endswith("\ufffd"):
        sys.stderr.write(now.removeprefix(before.rstrip("\ufffd")))
        sys.stderr.flush()
