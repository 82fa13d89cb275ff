"""Known targets, what each needs, and how to get what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.errors import TargetError, nearest
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


def known() -> dict[str, Target]:
    from ingot.targets.arm import ETHOS_U55, ETHOS_U85, VGF
    from ingot.targets.xnnpack import XNNPACK

    return {t.name: t for t in (XNNPACK, VGF, ETHOS_U55, ETHOS_U85)}


def find(name: str | Target) -> Target:
    """The target of that name, with everything it needs installed; an error that says what to do otherwise."""
    if isinstance(name, Target):
        return name
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
    return targets[name]


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
    )
