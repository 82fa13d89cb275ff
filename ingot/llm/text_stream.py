"""Tokens to text, piece by piece: half a character waits for its other half, and stop strings end the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HALF = "\ufffd"  # what a decoder returns for bytes that are no character yet


class TextStream:
    """`push` a token, get the text that is certain by now."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, [s for s in stops if s]
        self.tokens, self.given, self.stopped = list[int](), 0, ""

    @property
    def text(self) -> str:
        """Without the stop string that ended it."""
        whole: str = self.tokenizer.decode(self.tokens)
        return whole[: whole.index(self.stopped)] if self.stopped else whole

    def push(self, token: int) -> str:
        """What the token adds. A piece that may become a stop string is kept back."""
        self.tokens.append(token)
        whole = self.tokenizer.decode(self.tokens)
        found = [s for s in self.stops if s in whole]
        self.stopped = min(found, key=whole.index, default="")
        return self._more(len(self.text) if self.stopped else _certain(whole, self.stops), whole)

    def rest(self) -> str:
        """What was kept back, at the end of the text."""
        return self._more(len(self.text), self.text)

    def _more(self, end: int, whole: str) -> str:
        made, self.given = whole[self.given : end], max(self.given, end)
        return made


def _certain(text: str, stops: Sequence[str]) -> int:
    """The length of the text without half characters and without the beginning of a stop string at its end."""
    end = len(text.rstrip(HALF))
    kept = [n for s in stops for n in range(1, len(s)) if text[:end].endswith(s[:n])]
    return end - max(kept, default=0)
