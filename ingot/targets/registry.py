"""Known targets, what each needs, and how to get what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ingot.errors import InputError, TargetError, nearest
from ingot.targets.base import Target

__all__ = ["Availability", "available", "find", "known"]


@dataclass(frozen=True)
class Availability:
    """One line of `ingot targets`."""

    name: str
    description: str
    installed: bool
    found: dict[str, str]
    missing: dict[str, str]  # requirement -> the line that installs it
    extras: dict[str, str]  # what it can do without and is not there -> the line that installs it
    options: dict[str, str]  # what a recipe may set for it


def known() -> dict[str, Target]:
    from ingot.targets.arm.target import TARGETS
    from ingot.targets.vulkan.target import VULKAN
    from ingot.targets.xnnpack.target import XNNPACK

    return {t.name: t for t in (XNNPACK, VULKAN, *TARGETS)}


def find(name: str, options: Iterable[tuple[str, Any]] = (), others: Collection[str] = ()) -> Target:
    """The target of that name, with everything it needs installed; an error that says what to do otherwise.

    `others` are backends beside it.
    """
    from ingot.backends import (
        registry as backends,  # they say what they can do in a target's words, so they come after this package
    )

    targets = known()
    if name not in targets:
        raise TargetError(f"unknown target '{name}'", hint=nearest(str(name), targets))
    status = _status(targets[name])
    if status.missing:
        raise TargetError(
            f"target '{name}' needs {', '.join(status.missing)}",
            why="not installed, or installed but not importable",
            hint="; ".join(dict.fromkeys(status.missing.values())),
        )
    return _composed(name, tuple(options), backends.find(others))


@lru_cache(maxsize=16)
def _composed(name: str, options: tuple[tuple[str, Any], ...], others: tuple[Any, ...]) -> Target:
    """The same arguments give the same object, by which rewritten programs are found again."""
    from ingot.targets.composed import beside

    return beside(_configured(known()[name], dict(options)), others)


def _configured(target: Target, options: dict[str, Any]) -> Target:
    for name in options:
        if name not in target.options:
            hint = nearest(name, target.options) if target.options else "it has none"
            raise InputError(f"{target.name} has no option '{name}'", hint=hint)
    return target.configured(options) if options and target.configured else target


def available() -> tuple[Availability, ...]:
    return tuple(_status(t) for t in known().values())


def _status(target: Target) -> Availability:
    found = {r.name: r.found() for r in target.requirements}
    return Availability(
        target.name,
        target.description,
        installed=all(found.values()),
        found={k: v for k, v in found.items() if v},
        missing={r.name: r.install for r in target.requirements if not found[r.name]},
        extras={r.name: r.install for r in target.extras if not r.found()},
        options=dict(target.options),
    )
