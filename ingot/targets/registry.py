"""Known targets: built-in, registered, and from entry points of installed packages. What each one requires."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ingot.backends import registry as backends
from ingot.errors import InputError, TargetError, nearest
from ingot.targets.arm.target import TARGETS
from ingot.targets.base import Target
from ingot.targets.composed import with_backends
from ingot.targets.vulkan.target import VULKAN
from ingot.targets.xnnpack.target import XNNPACK

GROUP = "ingot.targets"  # entry point group; each entry point names a Target
BUILT_IN = {t.name: t for t in (XNNPACK, VULKAN, *TARGETS)}
_registered: dict[str, Target] = {}


@dataclass(frozen=True)
class Availability:
    """One line of `ingot targets`."""

    name: str
    description: str
    installed: bool
    found: dict[str, str]
    missing: dict[str, str]  # requirement -> the command that installs it
    extras: dict[str, str]  # optional requirement that is missing -> the command that installs it
    options: dict[str, str]  # option of a recipe -> what it sets


def register_target(target: Target) -> Target:
    """Make a target known by its name in this process."""
    _registered[target.name] = target
    _composed.cache_clear()
    return target


def known_targets() -> dict[str, Target]:
    """By name. A target whose package does not load is missing here; `find_target` says why."""
    return {**_from_entry_points(), **BUILT_IN, **_registered}


def _from_entry_points() -> dict[str, Target]:
    found = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = _loaded(entry)
        except TargetError:
            continue
    return found


def _loaded(entry: EntryPoint) -> Target:
    try:
        target = entry.load()
    except Exception as e:
        why, hint = f"{type(e).__name__}: {e}", "install its package again"
        raise TargetError(f"target '{entry.name}' does not load", why=why, hint=hint) from e
    if not isinstance(target, Target):
        hint = "its entry point must name a Target"
        raise TargetError(f"target '{entry.name}' is a {type(target).__name__}", hint=hint)
    if target.name != entry.name:
        why = f"its entry point is named '{entry.name}'"
        raise TargetError(f"target '{target.name}' does not load", why=why, hint="give both the same name")
    return target


def find_target(name: str, options: Iterable[tuple[str, Any]] = (), extra_backends: Collection[str] = ()) -> Target:
    """The target of that name, or a TargetError: unknown, not loadable, or requirements missing."""
    target = _known(name)
    status = _status(target)
    if status.missing:
        raise TargetError(
            f"target '{name}' needs {', '.join(status.missing)}",
            why="not installed, or installed but not importable",
            hint="; ".join(dict.fromkeys(status.missing.values())),
        )
    return _composed(name, tuple(options), backends.find_backends(extra_backends))


def _known(name: str) -> Target:
    if name in (known := {**BUILT_IN, **_registered}):  # installed entry points need not be read
        return known[name]
    targets = known_targets()
    if name in targets:
        return targets[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _loaded(entry)  # raises, with the reason
    raise TargetError(f"unknown target '{name}'", hint=nearest(str(name), targets))


@lru_cache(maxsize=16)
def _composed(name: str, options: tuple[tuple[str, Any], ...], others: tuple[Any, ...]) -> Target:
    """Cached: rewritten programs are cached by the identity of the target."""
    return with_backends(_configured(_known(name), dict(options)), others)


def _configured(target: Target, options: dict[str, Any]) -> Target:
    known = target.setup.options
    for name in options:
        if name not in known:
            hint = nearest(name, known) if known else "this target has no options"
            raise InputError(f"{target.name} has no option '{name}'", hint=hint)
    return target.setup.configure(options) if options and target.setup.configure else target


def available_targets() -> tuple[Availability, ...]:
    return tuple(_status(t) for t in known_targets().values())


def _status(target: Target) -> Availability:
    setup = target.setup
    found = {r.name: r.found() for r in setup.requirements}
    return Availability(
        target.name,
        target.description,
        installed=all(found.values()),
        found={k: v for k, v in found.items() if v},
        missing={r.name: r.install for r in setup.requirements if not found[r.name]},
        extras={r.name: r.install for r in setup.extras if not r.found()},
        options=dict(setup.options),
    )
