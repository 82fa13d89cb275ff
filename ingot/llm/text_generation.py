"""Text from a session: sampling, stop strings, streaming, a reason why it ended, and tokens a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.errors import InputError
from ingot.llm.chat import ChatTemplate, Message
from ingot.llm.generation import DecoderSession, GenerationSpeed, TokenTimer, generate_tokens
from ingot.llm.sampling import Sampling, TokenSampler
from ingot.llm.text_stream import TextStream

Shown = Callable[[str], Any]


@dataclass(frozen=True)
class TextRequest:
    """How to continue a prompt."""

    most: int = 64  # tokens
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class GeneratedText:
    text: str
    ended: str  # stop token, stop string, length, context or interrupt
    speed: GenerationSpeed

    @property
    def facts(self) -> dict[str, Any]:
        speed = self.speed
        return {
            "text": self.text,
            "ended": self.ended,
            "tokens": speed.made,
            "tokens_per_second": speed.tokens_per_second,
            "prompt_tokens": speed.prompt,
            "prompt_tokens_per_second": speed.prompt_tokens_per_second,
        }


def generate_text(
    session: DecoderSession, tokenizer: Any, prompt: list[int], request: TextRequest, show: Shown = str
) -> GeneratedText:
    """Continue a prompt; Ctrl-C ends the text and keeps what there is.

    Rows of an earlier text that the prompt begins with are kept: `session.position` says how many.
    """
    kept = session.position
    stream, timer = TextStream(tokenizer, request.stops), TokenTimer(len(prompt) - kept)
    chooser = TokenSampler(request.sampling, prompt)
    ended = "stop token"
    try:
        for token in generate_tokens(session, prompt, request.most, chooser):
            timer.tick()
            show(stream.push(token))
            if stream.stopped:
                ended = "stop string"
                break
        else:
            ended = _ended(session, len(prompt), timer.made, request.most)
    except KeyboardInterrupt:
        ended = "interrupt"
    show(stream.rest())
    return GeneratedText(stream.text, ended, timer.speed)


def _ended(session: DecoderSession, prompt: int, made: int, most: int) -> str:
    if made >= most:
        return "length"
    return "context" if prompt + made >= session.spec.context else "stop token"


class Chat:
    """A conversation: each message continues the text, and only what is new is computed."""

    def __init__(self, session: DecoderSession, tokenizer: Any, folder: Path, system: str = "") -> None:
        self.session, self.tokenizer, self.template = session, tokenizer, ChatTemplate.from_folder(folder)
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.known = list[int]()  # tokens whose keys and values are in the cache
        self.forgotten = 0  # messages that no longer fit

    def answer(self, message: str, request: TextRequest, show: Shown = str) -> GeneratedText:
        self.messages.append({"role": "user", "content": message})
        try:
            prompt = self._prompt()
        except InputError:
            self.messages.pop()  # the conversation goes on without it
            raise
        self.session.position = _common(self.known[: self.session.position], prompt[:-1])
        self.known = prompt
        made = generate_text(self.session, self.tokenizer, prompt, request, show)
        self.messages.append({"role": "assistant", "content": made.text})
        return made

    def _prompt(self) -> list[int]:
        """The conversation as tokens. The oldest messages are dropped: half the context is for the answer."""
        while len(prompt := self._tokens()) > self.session.spec.context // 2 and self._forget():
            pass
        if len(prompt) >= self.session.spec.context:
            why = f"it has {len(prompt)} tokens with its template, the context is {self.session.spec.context}"
            raise InputError("the message is longer than the context", why=why, hint="cast with a larger --context")
        return prompt

    def _tokens(self) -> list[int]:
        return list(self.tokenizer.encode(self.template.render(self.messages), add_special_tokens=False).ids)

    def _forget(self) -> bool:
        """Drop the oldest message and its answer; the system message and the newest message stay."""
        first = int(self.messages[0]["role"] == "system")
        if len(self.messages) - first < 3:
            return False
        del self.messages[first : first + 2]
        self.forgotten += 2
        return True


def _common(known: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens two texts begin with."""
    pairs = enumerate(zip(known, prompt, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(known), len(prompt)))
