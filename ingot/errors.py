"""Every refusal says what · where (node and the user's file:line) · why · try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class IngotError(Exception):
    """Base of all errors of Ingot: one paragraph for the user; the original error, if any, is chained."""

    # Of a cast for several targets: the castings that are finished, and what went wrong for the others, by target.
    castings: Mapping[str, Any] = {}
    failures: Mapping[str, IngotError] = {}

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None):
        self.what, self.where, self.why, self.hint = what, where, why, hint
        super().__init__(self._paragraph())

    def _paragraph(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.why:
            parts.append(f"why: {self.why}")
        if self.hint:
            parts.append(f"try: {self.hint}")
        return " · ".join(parts)

    def add_hint(self, hint: str) -> None:
        """One more thing to try, after the others."""
        self.hint = f"{self.hint}; {hint}" if self.hint else hint
        self.args = (self._paragraph(),)


class InputError(IngotError):
    """What the user handed over (files, arguments, batches) does not fit."""


class CaptureError(IngotError):
    """The model could not be exported or brought into normal form."""


class PlanError(IngotError):
    """The demands on precision or scale cannot all be met."""


class LowerError(IngotError):
    """The target's own tools refused the program."""


class TargetError(IngotError):
    """An unknown target, or one whose packages are missing."""


class ArtefactError(IngotError):
    """A program file could not be loaded, run, or written."""


class NoRuntimeError(ArtefactError):
    """What executes programs here does not start: no program is at fault."""


class NoKernelError(LowerError, ArtefactError):
    """Neither a backend nor the host can run an op."""

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None,
        values: tuple[str, ...] = (),
    ):  # fmt: skip
        super().__init__(what, where=where, why=why, hint=hint)
        self.values = values  # the values of the program that these ops compute


class MismatchError(IngotError):
    """The artefact ran, and its numbers are not the model's."""

    def __init__(
        self,
        what: str,
        *,
        check: object = None,
        where: str | None = None,
        why: str | None = None,
        hint: str | None = None,
    ):
        super().__init__(what, where=where, why=why, hint=hint)
        self.check = check


class GoalError(IngotError):
    """No plan meets the goal; `casting` is the nearest one."""

    def __init__(self, what: str, *, casting: Any = None, why: str | None = None, hint: str | None = None):
        super().__init__(what, why=why, hint=hint)
        self.casting = casting


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that offers the nearest known name, or all of them when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"one of: {', '.join(names)}"


def first_sentence(error: BaseException, limit: int = 300) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
