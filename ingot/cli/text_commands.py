"""Commands that run a language model: continue prompts, chat."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ingot.cli.files import read_bytes
from ingot.cli.output import INTERRUPTED, OK, Answer, watched
from ingot.errors import IngotError, InputError
from ingot.llm import generation
from ingot.llm.sampling import Sampling
from ingot.llm.text_generation import Chat, GeneratedText, TextRequest, generate_text
from ingot.llm.tokenizer_files import read_tokenizer


def generate_command(options: argparse.Namespace) -> Answer:
    """On a terminal text appears as it is made; speed and memory at the end."""
    prompts, tokenizer, request = _prompts(options), read_tokenizer(options.folder), _request(options)
    session, made = _session(options.folder), list[GeneratedText]()
    show, several = _shown(options), options.prompts is not None
    for prompt in prompts:
        session.position = 0
        made.append(generate_text(session, tokenizer, tokenizer.encode(prompt).ids, request, show))
        if made[-1].ended == "interrupt":
            break
        if several:
            show("\n\n")
    facts = {"results": [m.facts for m in made]} if several else made[-1].facts
    said = "" if show is not str else "\n\n".join(m.text for m in made)
    code = INTERRUPTED if made[-1].ended == "interrupt" else OK
    return code, facts, f"{said}\n\n{_speed(made)}"


def chat_command(options: argparse.Namespace) -> Answer:
    """A message per line of stdin, up to its end; Ctrl-C ends an answer, and at the prompt the conversation."""
    tokenizer, request, show = read_tokenizer(options.folder), _request(options), _shown(options)
    chat, made = Chat(_session(options.folder), tokenizer, options.folder, options.system), list[GeneratedText]()
    asks = not options.message and sys.stdin.isatty()
    for message in _messages(options.message, asks):
        try:
            made.append(chat.answer(message, request, show))
        except IngotError as e:
            if not asks:
                raise
            sys.stderr.write(f"ingot: {e}")
        show("\n")
    if not made:
        raise InputError("no message was given", hint="--message TEXT, or a line on stdin")
    note = f"\n{chat.forgotten} messages no longer fitted into the context" if chat.forgotten else ""
    facts = {"answers": [m.facts for m in made], "forgotten_messages": chat.forgotten}
    said = "" if show is not str else "\n\n".join(m.text for m in made)
    return OK, facts, f"{said}\n\n{_speed(made)}{note}"


def _messages(given: list[str] | None, asks: bool) -> Iterator[str]:
    for line in given or _lines(asks):
        if line.strip():
            yield line.strip()


def _lines(asks: bool) -> Iterator[str]:
    try:
        while True:
            if asks:
                sys.stderr.write("> ")
                sys.stderr.flush()
            if not (line := sys.stdin.readline()):
                return
            yield line
    except KeyboardInterrupt:
        return


def _prompts(options: argparse.Namespace) -> list[str]:
    if (options.prompt is None) == (options.prompts is None):
        raise InputError("a prompt is needed", hint="ingot generate out/ 'Once upon a time', or --prompts FILE")
    return [options.prompt] if options.prompts is None else _lines_of(options.prompts)


def _lines_of(file: Path) -> list[str]:
    lines = read_bytes(file).decode(errors="replace").splitlines()
    if not (found := [line for line in lines if line.strip()]):
        raise InputError(f"{file} has no text", hint="one per line")
    return found


def _request(options: argparse.Namespace) -> TextRequest:
    if options.tokens < 1:
        raise InputError(f"--max-tokens must be positive, not {options.tokens}")
    how = Sampling(options.temperature, options.top_p, options.min_p, options.repetition_penalty, options.seed)
    return TextRequest(options.tokens, how, tuple(options.stop))


def _session(folder: Path) -> generation.DecoderSession:
    torch.set_num_threads(1)  # the runtime has threads of its own, and torch's would spin beside them
    return generation.open_session(folder)


def _shown(options: argparse.Namespace) -> Any:
    """Where text goes as it is made: to a terminal; else `str`, and it is in the answer."""
    seen = "stdout" in watched and sys.stderr.isatty() and not options.json
    return _write if seen else str


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _speed(made: list[GeneratedText]) -> str:
    last = made[-1].speed
    prompt = f"prompt of {last.prompt} in {last.prompt_seconds:.2f} s, {last.prompt_tokens_per_second:.0f} a second"
    ended = f"ended by {made[-1].ended}"
    return f"{last.made} tokens, {last.tokens_per_second:.1f} a second, {ended}; {prompt}, {generation.peak_memory()}"
