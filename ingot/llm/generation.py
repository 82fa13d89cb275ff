"""Generate text from the folder of a cast decoder, on the ExecuTorch runtime; the session holds the KV cache."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ingot.config.validation import parsed_json
from ingot.core.digests import RECORDS, check_digest
from ingot.errors import ArtefactError, InputError
from ingot.llm.kv_cache import (
    WHOLE_TEXT,
    KVHeads,
    empty_kv_cache,
    grow_kv_cache,
    kv_capacity_for,
    step_inputs,
    update_kv_cache,
)
from ingot.runtime.bindings import load_method

DECODER_FILE, PTE = "decoder.json", "model.pte"


MOST_CONTEXT, MOST_CACHE_ROW = 1 << 24, 1 << 21  # tokens; numbers by token: 25 times those of a 70B model


@dataclass(frozen=True)
class DecoderSpec:
    """What a runner needs to know of the program; its fields are the keys of decoder.json."""

    context: int
    layers: int
    heads: KVHeads
    stops: tuple[int, ...] = ()  # tokens that end a text
    prefill: int = 0  # prompt tokens per call of the method `prefill`; 0: there is no such method
    windows: tuple[int, ...] = WHOLE_TEXT  # one mask each: how many tokens a token sees, 0 where all
    kv_cache: Literal["caller", "program"] = "caller"  # who owns it

    def __post_init__(self) -> None:
        """Numbers of a damaged file would allocate gigabytes."""
        heads = (self.heads.many, self.heads.sharing, self.heads.size)
        if min(self.context, self.layers, *heads) < 1 or min((0, self.prefill, *self.windows, *self.stops)) < 0:
            raise ValueError("context, layers and heads are positive, and no number is negative")
        if self.context > MOST_CONTEXT or self.layers * self.heads.many * self.heads.size > MOST_CACHE_ROW:
            raise ValueError(f"no decoder has a KV cache of {self.layers} layers, {heads} heads, {self.context} tokens")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_folder(folder: Path) -> DecoderSpec:
        try:
            return parsed_json(DecoderSpec, (folder / DECODER_FILE).read_bytes(), DECODER_FILE)
        except (OSError, InputError) as e:
            hint = "name a folder that `ingot cast --hf` of this version wrote"
            raise InputError(f"no decoder in {folder}", why=str(e), hint=hint) from e


class DecoderSession:
    """One text: the KV cache and the position of the next token."""

    def __init__(self, method: Any, spec: DecoderSpec, program: Any = None) -> None:
        self.method, self.spec, self.position = method, spec, 0
        self.program = program  # it must outlive its methods
        self.cache = empty_kv_cache(spec.layers, spec.heads, kv_capacity_for(1, spec.context))

    def decode(self, token: int) -> Tensor:
        """The logits after one more token."""
        if self.position >= self.spec.context:
            what = f"the text is longer than the context of {self.spec.context} tokens"
            raise InputError(what, hint="cast with a larger --context")
        return self._execute(self.method, [token], 1)

    def prefill(self, prompt: list[int]) -> Tensor:
        """The logits after a prompt: in chunks where the program has a prefill method, else token by token."""
        chunk = self.spec.prefill if self.program is not None else 0
        if len(prompt) < max(chunk // 4, 2) or not chunk:
            return [self.decode(token) for token in prompt][-1]
        method = self.program.load_method("prefill")  # freed on return: it holds its own copy of the weights
        for start in range(0, len(prompt), chunk):
            logits = self._execute(method, prompt[start : start + chunk], chunk)
        return logits.clone()

    def _execute(self, method: Any, tokens: list[int], width: int) -> Tensor:
        end = self.position + len(tokens)
        if (capacity := kv_capacity_for(end, self.spec.context)) > self.cache[0].shape[-1]:
            self.cache = grow_kv_cache(self.cache, capacity)
        capacity = self.cache[0].shape[-1]
        inputs = step_inputs(tokens, self.position, width, self.spec.heads, capacity, self.spec.windows)
        logits, *new = method([*inputs, *self.cache])
        update_kv_cache(self.cache, new, self.position, len(tokens))
        self.position = end
        return logits[0]


class ProgramSession(DecoderSession):
    """One text of a program that owns its KV cache: the inputs are those that ExecuTorch's runners give."""

    def __init__(self, method: Any, spec: DecoderSpec, program: Any = None) -> None:
        self.method, self.spec, self.program, self.position = method, spec, program, 0

    def prefill(self, prompt: list[int]) -> Tensor:
        return self._execute(self.method, prompt, len(prompt)).clone()

    def _execute(self, method: Any, tokens: list[int], width: int) -> Tensor:
        end = self.position + len(tokens)
        (logits,) = method([torch.tensor([tokens]), torch.arange(self.position, end)])
        self.position = end
        return logits[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Digests:
    """What is read of casting.json; its other fields need the packages that casts do."""

    digests: dict[str, str] = field(default_factory=dict)


def _saved_digests(folder: Path) -> dict[str, str]:
    if not (folder / RECORDS).is_file():
        return {}
    return parsed_json(_Digests, (folder / RECORDS).read_bytes(), RECORDS).digests


def check_saved(folder: Path) -> None:
    """A program runs in this process, which a damaged one can crash."""
    check_digest(folder / PTE, _saved_digests(folder))


def open_session(folder: Path) -> DecoderSession:
    spec = DecoderSpec.from_folder(folder)
    check_saved(folder)
    try:
        program, method = load_method(folder / PTE, "forward")
    except Exception as e:
        raise ArtefactError(f"{folder / PTE} does not load", why=str(e), hint="cast it again") from e
    return (ProgramSession if spec.kv_cache == "program" else DecoderSession)(method, spec, program)


@dataclass(frozen=True)
class GenerationSpeed:
    """Token counts and seconds; the prompt's time includes the first generated token."""

    prompt: int
    made: int
    prompt_seconds: float
    made_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return (self.made - 1) / self.made_seconds if self.made_seconds and self.made > 1 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        return self.prompt / self.prompt_seconds if self.prompt_seconds else 0.0


class TokenTimer:
    """Call `tick` at each generated token."""

    def __init__(self, prompt: int) -> None:
        self.prompt, self.made = prompt, 0
        self.started = self.first = self.last = time.perf_counter()

    def tick(self) -> None:
        self.last = time.perf_counter()
        self.first = self.last if not self.made else self.first
        self.made += 1

    @property
    def speed(self) -> GenerationSpeed:
        return GenerationSpeed(self.prompt, self.made, self.first - self.started, self.last - self.first)


def peak_memory() -> str:
    """The peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak / (1024 if sys.platform != 'darwin' else 1024**2):.0f} MB"


def most_likely(logits: Tensor) -> int:
    return int(logits.argmax())


def generate_tokens(
    session: DecoderSession, prompt: list[int], most: int, choose: Callable[[Tensor], int] = most_likely
) -> Iterator[int]:
    """Tokens after a prompt, of which the session may know the beginning; greedy by default."""
    if not prompt:
        raise InputError("the prompt has no tokens", hint="give some text")
    if len(prompt) > session.spec.context:
        why = f"it has {len(prompt)} tokens, the context is {session.spec.context}"
        hint = "shorten it, or cast with a larger --context"
        raise InputError("the prompt is longer than the context", why=why, hint=hint)
    logits = session.prefill(prompt[session.position :])
    for left in range(min(most, session.spec.context - len(prompt)), 0, -1):
        token = choose(logits)
        if token in session.spec.stops:
            return
        yield token
        if left > 1:  # nobody reads the logits after the last token
            logits = session.decode(token)


def generate_timed(session: DecoderSession, prompt: list[int], most: int) -> tuple[list[int], GenerationSpeed]:
    timer, made = TokenTimer(len(prompt)), []
    for token in generate_tokens(session, prompt, most):
        timer.tick()
        made.append(token)
    return made, timer.speed
