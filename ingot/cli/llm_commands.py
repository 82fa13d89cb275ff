"""The command that casts a language model: a checkpoint in, a folder out."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingot.cli.files import check_folder, read_bytes
from ingot.cli.inputs import refuse_ignored_options
from ingot.cli.output import OK, WRONG, Answer
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
    "shapes": "--shapes",
}  # fmt: skip


CastingFiles = Callable[[Casting, argparse.Namespace], dict[str, bytes]]


def cast_hf(options: argparse.Namespace, files: CastingFiles) -> Answer:
    """`files` makes the usual files of a casting."""
    refuse_ignored_options(options, "--hf names the model, and --text is its data", UNUSED)
    check_folder(options.output)
    if len(options.target) != 1:
        raise InputError("a language model is cast for one target at a time", hint="--target xnnpack")
    texts = [read_bytes(options.text).decode(errors="replace")] if options.text else []
    progress = Progress(quiet=options.quiet)
    with progress.step("load"):
        found = load_checkpoint(options.hf)
    tokenizer = _tokenizer(found.tokenizer)
    casting, spec = cast_decoder(
        found, target=options.target[0], steps=Steps(progress), on_mismatch=options.on_mismatch,
        weights=options.weights or "8da4w", context=options.context, texts=texts, kv_cache=options.kv_cache,
    )  # fmt: skip
    more = {generation.DECODER_FILE: spec.to_json().encode(), **tokenizer}
    write_folders({options.output: {**files(casting, options), **more}})
    return _answer(casting, options)


def _answer(casting: Casting, options: argparse.Namespace) -> Answer:
    good = casting.check is not None and casting.check.passed
    said = f"{summary(casting, options.verbose)}\nwritten to {options.output}"
    return OK if good else WRONG, summary_facts(casting), "" if options.quiet else said


def _tokenizer(tokenizer: Any) -> dict[str, bytes]:
    """Its files; runners read tokenizer.json."""
    with tempfile.TemporaryDirectory(prefix="ingot-tokenizer-") as name:
        tokenizer.save_pretrained(name)
        found = {f.name: f.read_bytes() for f in Path(name).iterdir() if f.is_file()}
    if "tokenizer.json" not in found:
        why = f"{type(tokenizer).__name__} saves {', '.join(sorted(found)) or 'nothing'}"
        raise InputError("the tokenizer has no tokenizer.json", why=why, hint="pip install sentencepiece tiktoken")
    return found
