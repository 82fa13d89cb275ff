"""Output of a command: one answer on stdout, errors on stderr, an exit code that scripts can use."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import Any

from ingot.errors import ArtefactError, GoalError, IngotError, MismatchError

OK, BUG, REFUSED, WRONG, BROKEN, NOT_MET, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
Answer = tuple[int, dict[str, Any], str]  # exit code, what --json prints, what people read
watched: set[str] = set()  # {"stdout"} where the answer goes to a terminal


def say(code: int, data: dict[str, Any], text: str, as_json: bool) -> int:
    """JSON has no infinities and no NaN: they are the strings "inf", "-inf" and "nan"."""
    from ingot.result.report.text import json_ready

    shown = json.dumps(json_ready(data), indent=2, allow_nan=False) if as_json else text
    try:
        print(shown, end="\n" if shown else "", flush=True)
    except OSError as e:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  or Python tries again at exit
        hint = "is the disk full, or the reader of the pipe gone?"
        told = ArtefactError("could not write the answer to stdout", why=e.strerror, hint=hint)
        print(f"ingot: {told}", file=sys.stderr)
        return BROKEN
    return code


def fail(code: int, data: dict[str, Any], text: str, as_json: bool) -> int:
    print(f"ingot: {text}", file=sys.stderr)
    say(code, {"error": {**data, "exit": code}}, "", as_json)
    return code


def refuse(error: IngotError, as_json: bool) -> int:
    """An error of one target among several comes with those of the others, and with the names of the finished."""
    data, text = _error_data(error), str(error)
    if error.failures and (error.castings or len(error.failures) > 1):
        data["failures"] = {target: _error_data(e) for target, e in error.failures.items()}
        data["finished"] = list(error.castings)
        text = "\ningot: ".join(f"{target}: {e}" for target, e in error.failures.items())
        text += f"\ningot: finished and written: {', '.join(error.castings)}" if error.castings else ""
    return fail(exit_code(error), data, text, as_json)


def exit_code(error: IngotError) -> int:
    if isinstance(error, GoalError):
        return NOT_MET
    return WRONG if isinstance(error, MismatchError) else BROKEN if isinstance(error, ArtefactError) else REFUSED


def bug(error: Exception, as_json: bool) -> int:
    if os.environ.get("INGOT_DEBUG"):
        traceback.print_exception(error)
    why, hint = f"{type(error).__name__}: {error}", "run it again with INGOT_DEBUG=1 and report what it prints"
    told = IngotError("this is a bug in Ingot, not in your model", why=why, hint=hint)
    return fail(BUG, {**_error_data(told), "type": type(error).__name__}, str(told), as_json)


def _error_data(error: IngotError) -> dict[str, Any]:
    data = {"type": type(error).__name__, **{k: getattr(error, k) for k in ("what", "where", "why", "hint")}}
    if isinstance(error, MismatchError):
        from ingot.result.report.text import check_data

        data["check"] = check_data(error.check)  # type: ignore[arg-type]
    return data


@contextmanager
def clean_stdout() -> Iterator[None]:
    """Stdout is for the answer: what prints there while a command runs (build(), native code) goes to stderr."""
    sys.stdout.flush()
    watched.clear()
    watched.update({"stdout"} if sys.stdout.isatty() else ())
    with redirect_stdout(sys.stderr), ExitStack() as undo:
        with suppress(OSError):  # a closed stdout or stderr needs no care
            saved = os.dup(1)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, 1)
            os.dup2(2, 1)
        yield


@contextmanager
def calm() -> Iterator[None]:
    """Other packages' warnings are for their developers; INGOT_DEBUG shows them."""
    if os.environ.get("INGOT_DEBUG"):
        yield
        return
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
