"""Decides which patches apply to the installed torch and ExecuTorch, and applies them.

Patches that only save time need the tested versions: with others, lowering is slower and gives the same result. Patches
that repair behaviour need only the patched name. A name that is missing is skipped.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import RLock
from typing import Any
from unittest.mock import patch

from ingot.core.versions import TESTED, installed
from ingot.patches.table import PATCHES, SPEED, Patch

PATCHED_PACKAGES = ("torch", "executorch")
PATCH_LOCK = RLock()  # patches are visible to all threads: one thread lowers at a time
_MISSING = (ImportError, AttributeError)
_installed = cache(installed)  # a lookup takes milliseconds, and every context asks


def untested_versions() -> dict[str, str]:
    """The installed version of each patched package that is not the tested one."""
    found = {package: (_installed(package) or "").partition("+")[0] for package in PATCHED_PACKAGES}
    return {package: version for package, version in found.items() if version not in ("", TESTED[package])}


def speed_patches_apply() -> bool:
    return not untested_versions()


def warn_if_untested() -> None:
    """Warn once a process that lowering is slow, and why."""
    if untested := untested_versions():
        _warn_once(", ".join(f"{package} {version}" for package, version in untested.items()))


@cache
def _warn_once(found: str) -> None:
    tested = ", ".join(f"{package} {TESTED[package]}" for package in PATCHED_PACKAGES)
    warnings.warn(
        f"Ingot is tested with {tested}; installed: {found}. "
        "Its patches that speed up lowering are off: lowering takes longer, its result is checked as always.",
        stacklevel=3,
    )


@contextmanager
def patched(group: str) -> Iterator[None]:
    """Apply a group of `PATCHES`; nothing for a speed group on untested versions."""
    applies = group not in SPEED or speed_patches_apply()
    with PATCH_LOCK, ExitStack() as stack:
        session: dict[str, Any] = {}
        # All originals are read before the first is replaced.
        found = [patch_if_present(p, session) for p in (PATCHES[group] if applies else ())]
        for one in found:
            if one is not None:
                stack.enter_context(one)
        yield


def patch_if_present(entry: Patch, session: dict[str, Any]) -> Any:
    """A context manager that applies the patch; None where its owner or attribute does not exist."""
    try:
        owner = _resolve(entry.owner)
        return patch.object(owner, entry.attribute, _replacement(entry, getattr(owner, entry.attribute), session))
    except _MISSING:
        return None


def _resolve(path: str) -> Any:
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


def _replacement(entry: Patch, original: Any, session: dict[str, Any]) -> Any:
    return _resolve(f"ingot.patches.{entry.replacement}")(original, session)
