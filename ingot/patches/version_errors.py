"""Errors that come from another version of torch, ExecuTorch or torchao, in words.

Ingot imports private names of these packages. In a version that it was not tested with, a name may be missing, or take
other arguments. Then the user reads which versions are installed and which are needed.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from ingot.core.versions import TESTED, install_line
from ingot.errors import ArtefactError, IngotError, LowerError, MismatchError, TargetError, first_sentence
from ingot.patches.version_gate import CORE_PACKAGES, untested_versions

P = ParamSpec("P")
R = TypeVar("R")
OURS = Path(__file__).parents[1]


def explains_version_errors(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb whose errors of other versions name the versions."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with version_errors():
            return verb(*args, **kwargs)

    return call


@contextmanager
def version_errors() -> Iterator[None]:
    """Raise a TargetError instead of an error that comes from an untested or incomplete installation."""
    try:
        yield
    except (LowerError, ArtefactError, MismatchError) as e:
        _mention_versions(e)
        raise
    except IngotError:
        raise
    except Exception as e:
        if (error := version_error(e)) is None:
            raise
        raise error from e


def _mention_versions(error: IngotError) -> None:
    """A backend of another version may be the cause."""
    untested = untested_versions(CORE_PACKAGES)
    if untested and "pip install" not in (error.hint or ""):
        found = ", ".join(f"{p} {v}" for p, v in untested.items())
        error.add_hint(f"{found} is not what Ingot is made for: {'; '.join(map(install_line, untested))}")


def version_error(error: Exception) -> TargetError | None:
    """A missing name of these packages, in any version; in untested ones, any error that arises in them or in Ingot."""
    untested = untested_versions(CORE_PACKAGES)
    if not _arises_inside(error) or not (untested or _is_missing_name(error)):
        return None
    found = ", ".join(f"{p} {v}" for p, v in untested.items()) or "an installation that is not complete"
    made_for = ", ".join(f"{p} {TESTED[p]}" for p in CORE_PACKAGES)
    version = sys.modules["ingot"].__version__
    why = f"{type(error).__name__}: {first_sentence(error)}; Ingot {version} is made for {made_for}"
    hint = "; ".join(install_line(p) for p in untested or CORE_PACKAGES)
    return TargetError(f"Ingot does not work with {found}", where=_place(error), why=why, hint=hint)


def _is_missing_name(error: Exception) -> bool:
    module = error.name if isinstance(error, ImportError) else None
    return (module or "").partition(".")[0] in CORE_PACKAGES


def _arises_inside(error: Exception) -> bool:
    """In Ingot's code, or in that of these packages when Ingot calls it: not where the user's code does."""
    packages = [_package_of(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    callers = [p for p in packages if p not in CORE_PACKAGES]
    return bool(callers) and callers[-1] == "ingot"


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _place(error: Exception) -> str | None:
    """The last line of Ingot that was reached."""
    ours = [
        (f, line) for f, line in traceback.walk_tb(error.__traceback__) if OURS in Path(f.f_code.co_filename).parents
    ]
    here = [f"{Path(f.f_code.co_filename).relative_to(OURS.parent)}:{line}" for f, line in ours]
    return here[-1] if here else None
