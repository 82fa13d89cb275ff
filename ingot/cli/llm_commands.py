"""The command that casts a language or an embedding model: a checkpoint in, a folder out."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ingot.cli.files import check_folder, read_bytes
from ingot.cli.inputs import refuse_ignored_options
from ingot.cli.output import OK, WRONG, Answer
from ingot.core.atomic_file import write_folders
from ingot.core.progress import Progress, Steps
from ingot.errors import InputError
from ingot.llm import generation
from ingot.llm.checkpoint import load_checkpoint
from ingot.llm.embedding import ENCODER_FILE
from ingot.llm.encoder_checkpoint import is_encoder_checkpoint, load_encoder
from ingot.llm.encoder_pipeline import DEFAULT_WEIGHTS, cast_encoder
from ingot.llm.pipeline import cast_decoder
from ingot.llm.tokenizer_files import tokenizer_files
from ingot.result.casting import Casting
from ingot.result.report.text import summary, summary_facts

# Options of other casts, which --hf has no use for.
UNUSED = {
    "model": "MODEL", "calibrate": "--calibrate", "validation": "--validation", "mean": "--mean", "std": "--std",
    "recipe": "--recipe", "scenario": "--scenario", "dynamic_shapes": "--dynamic-shapes",
    "shapes": "--shapes",
}  # fmt: skip


CastingFiles = Callable[[Casting, argparse.Namespace], dict[str, bytes]]
Made = tuple[Casting, dict[str, bytes]]  # a casting, and the files beside it


def cast_hf(options: argparse.Namespace, files: CastingFiles) -> Answer:
    """`files` makes the usual files of a casting."""
    refuse_ignored_options(options, "--hf names the model, and --text is its data", UNUSED)
    check_folder(options.output)
    if len(options.target) != 1:
        raise InputError("a language model is cast for one target at a time", hint="--target xnnpack")
    text = read_bytes(options.text).decode(errors="replace") if options.text else ""
    make = _encoder if is_encoder_checkpoint(options.hf) else _decoder
    casting, more = make(options, text, Progress(quiet=options.quiet))
    write_folders({options.output: {**files(casting, options), **more}})
    return _answer(casting, options)


def _decoder(options: argparse.Namespace, text: str, progress: Progress) -> Made:
    with progress.step("load"):
        found = load_checkpoint(options.hf)
    tokenizer = tokenizer_files(found.tokenizer)
    casting, spec = cast_decoder(
        found, target=options.target[0], steps=Steps(progress), on_mismatch=options.on_mismatch,
        weights=options.weights or "8da4w", context=options.context, texts=[text] if text else [],
        kv_cache=options.kv_cache,
    )  # fmt: skip
    return casting, {generation.DECODER_FILE: spec.to_json().encode(), **tokenizer}


def _encoder(options: argparse.Namespace, text: str, progress: Progress) -> Made:
    """A text per line."""
    refuse_ignored_options(options, "an embedding model has no KV cache", {"kv_cache": "--kv-cache"})
    with progress.step("load"):
        found = load_encoder(options.hf)
    casting, spec = cast_encoder(
        found, target=options.target[0], steps=Steps(progress), on_mismatch=options.on_mismatch,
        weights=options.weights or DEFAULT_WEIGHTS, context=options.context, texts=text.splitlines(),
    )  # fmt: skip
    return casting, {ENCODER_FILE: spec.to_json().encode(), **tokenizer_files(found.tokenizer)}


def _answer(casting: Casting, options: argparse.Namespace) -> Answer:
    good = casting.check is not None and casting.check.passed
    said = f"{summary(casting, options.verbose)}\nwritten to {options.output}"
    return OK if good else WRONG, summary_facts(casting), "" if options.quiet else said
