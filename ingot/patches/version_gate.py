"""Decides which patches apply to the installed torch and ExecuTorch, and applies them.

Patches that only save time need the tested versions: with others, lowering is slower and gives the same result. Patches
that repair behaviour need only the patched name. Where that is missing, a warning says what is not repaired: an error
would show when the artefact is compiled or verified. Where it would not show, the repair is `needed`: it is an error if
its name is missing.
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

from ingot.core.versions import TESTED, install_line, installed
from ingot.errors import LowerError
from ingot.patches.table import PATCHES, SPEED, Patch

PATCHED_PACKAGES = ("torch", "executorch")
CORE_PACKAGES = (*PATCHED_PACKAGES, "torchao")
PATCH_LOCK = RLock()  # patches are visible to all threads: one thread lowers at a time
_MISSING = (ImportError, AttributeError)
_installed = cache(installed)  # a lookup takes milliseconds, and every context asks


def untested_versions(packages: tuple[str, ...] = PATCHED_PACKAGES) -> dict[str, str]:
    """The installed version of each package that is not the tested one."""
    found = {package: (_installed(package) or "").partition("+")[0] for package in packages}
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
        found = [patch_if_present(p, session, is_repair=group not in SPEED) for p in PATCHES[group] if applies]
        for one in found:
            if one is not None:
                stack.enter_context(one)
        yield


@cache
def patch_for_good(group: str) -> None:
    """Once a process, and never taken back."""
    with PATCH_LOCK:
        for one in filter(None, [patch_if_present(p, {}, is_repair=True) for p in PATCHES[group]]):
            one.__enter__()


def patch_if_present(entry: Patch, session: dict[str, Any], *, is_repair: bool = False) -> Any:
    """A context manager that applies the patch; None where its owner or attribute does not exist."""
    try:
        owner = _resolve(entry.owner)
        return patch.object(owner, entry.attribute, _replacement(entry, getattr(owner, entry.attribute), session))
    except _MISSING as e:
        if entry.needed and _has_module(entry):
            raise _not_repaired(entry) from e
        if is_repair:
            _warn_not_repaired(entry)
        return None


def _has_module(entry: Patch) -> bool:
    """Without the module, there is nothing to repair."""
    try:
        importlib.import_module(entry.owner.partition(":")[0])
    except ImportError:
        return False
    return True


def _not_repaired(entry: Patch) -> LowerError:
    found = ", ".join(f"{p} {_installed(p)}" for p in PATCHED_PACKAGES)
    why = f"{entry.owner}.{entry.attribute} is missing: it {entry.why}, and Ingot cannot repair that"
    return LowerError(f"Ingot does not work with {found}", why=why, hint="; ".join(map(install_line, PATCHED_PACKAGES)))


@cache
def _warn_not_repaired(entry: Patch) -> None:
    found = ", ".join(f"{p} {_installed(p)}" for p in PATCHED_PACKAGES)
    text = (
        f"{found}: {entry.owner}.{entry.attribute} is missing, and is not repaired. In tested versions it {entry.why}."
    )
    warnings.warn(text, stacklevel=4)


def _resolve(path: str) -> Any:
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


def _replacement(entry: Patch, original: Any, session: dict[str, Any]) -> Any:
    return _resolve(f"ingot.patches.{entry.replacement}")(original, session)
