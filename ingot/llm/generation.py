"""Text from a folder that holds a decoder: token after token on the ExecuTorch runtime, keys and values kept here."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ingot.errors import ArtefactError, InputError
from ingot.llm.decoder import Heads, aligned, empty_past, keep, room_for, with_room
from ingot.runtime.bindings import load_method

FILE = "decoder.json"


@dataclass(frozen=True)
class Shape:
    """What the runner must know of the program."""

    context: int
    layers: int
    heads: Heads
    stops: tuple[int, ...] = ()  # tokens that end a text
    prefill: int = 0  # tokens of a prompt that its method of that name reads at once; 0: it has none

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(folder: Path) -> Shape:
        try:
            data = json.loads((folder / FILE).read_text())
            return Shape(**{**data, "heads": Heads(**data["heads"]), "stops": tuple(data["stops"])})
        except (OSError, ValueError, KeyError, TypeError) as e:
            hint = "name a folder that `ingot cast --hf` of this version wrote"
            raise InputError(f"{folder} holds no decoder", why=str(e), hint=hint) from e


class Session:
    """One text: what came before is kept from call to call."""

    def __init__(self, method: Any, shape: Shape, program: Any = None) -> None:
        self.method, self.shape, self.position = method, shape, 0
        self.program = program  # it must outlive its method
        self.past = empty_past(shape.layers, shape.heads, room_for(1, shape.context))

    def feed(self, token: int) -> Tensor:
        """The logits after one more token."""
        if self.position >= self.shape.context:
            raise InputError(
                f"the text is longer than the context of {self.shape.context} tokens", hint="cast with more"
            )
        return self._executed(self.method, [token], 1)

    def read(self, prompt: list[int]) -> Tensor:
        """The logits after a prompt: in strides where the program has a method for them, token after token else."""
        stride = self.shape.prefill if self.program is not None else 0
        if len(prompt) < max(stride // 4, 2) or not stride:
            return [self.feed(token) for token in prompt][-1]
        reader = self.program.load_method("prefill")  # let go of afterwards: it has its own copy of the weights
        for start in range(0, len(prompt), stride):
            logits = self._executed(reader, prompt[start : start + stride], stride)
        return logits.clone()

    def _executed(self, method: Any, tokens: list[int], width: int) -> Tensor:
        end = self.position + len(tokens)
        if (room := room_for(end, self.shape.context)) > self.past[0].shape[-1]:
            self.past = with_room(self.past, room)
        given = aligned(tokens, self.position, width, self.shape.heads, self.past[0].shape[-1])
        logits, *new = method([*given, *self.past])
        keep(self.past, new, self.position, len(tokens))
        self.position = end
        return logits[0]


def open_session(folder: Path) -> Session:
    shape = Shape.of(folder)
    try:
        program, method = load_method(folder / "model.pte", "forward")
    except Exception as e:
        raise ArtefactError(f"{folder / 'model.pte'} does not load", why=str(e), hint="cast it again") from e
    return Session(method, shape, program)


@dataclass(frozen=True)
class Speed:
    """The prompt's time ends with the first token."""

    prompt: int
    made: int
    prompt_seconds: float
    made_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return (self.made - 1) / self.made_seconds if self.made_seconds and self.made > 1 else 0.0


class Clock:
    def __init__(self, prompt: int) -> None:
        self.prompt, self.made = prompt, 0
        self.started = self.first = self.last = time.perf_counter()

    def tick(self) -> None:
        self.last = time.perf_counter()
        self.first = self.last if not self.made else self.first
        self.made += 1

    @property
    def speed(self) -> Speed:
        return Speed(self.prompt, self.made, self.first - self.started, self.last - self.first)


def memory() -> str:
    """The most that this process has held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{most / (1024 if sys.platform != 'darwin' else 1024**2):.0f} MB"


def generate(session: Session, prompt: list[int], most: int) -> Iterator[int]:
    """Greedy: the likeliest token, again and again."""
    if not prompt:
        raise InputError("the prompt has no tokens", hint="give some text")
    if len(prompt) > session.shape.context:
        why = f"it has {len(prompt)} tokens, the program holds {session.shape.context}"
        raise InputError("the prompt is longer than the context", why=why, hint="shorten it, or cast with more context")
    logits = session.read(prompt)
    for _ in range(min(most, session.shape.context - len(prompt))):
        token = int(logits.argmax())
        if token in session.shape.stops:
            return
        yield token
        logits = session.feed(token)


def timed(session: Session, prompt: list[int], most: int) -> tuple[list[int], Speed]:
    clock, made = Clock(len(prompt)), []
    for token in generate(session, prompt, most):
        clock.tick()
        made.append(token)
    return made, clock.speed
