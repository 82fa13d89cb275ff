"""Backends that can be lowered beside a target: ours, added ones and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from importlib.metadata import entry_points

from ingot.backends.base import Backend
from ingot.backends.sampler.backend import SAMPLER, SAMPLER_RGBA
from ingot.errors import InputError, TargetError, nearest

GROUP = "ingot.backends"  # of packages that bring one: the entry point names a Backend

_added: dict[str, Backend] = {}


def register_backend(backend: Backend) -> Backend:
    """Make a backend known under its name: recipes may then ask for it with `beside`."""
    _added[backend.name] = backend
    return backend


def known_backends() -> dict[str, Callable[[], Backend]]:
    """By name; each is loaded when it is asked for."""
    ours = {b.name: b for b in (SAMPLER, SAMPLER_RGBA)} | _added
    brought = {e.name: e.load for e in entry_points(group=GROUP)}
    return brought | {name: partial(_itself, backend) for name, backend in ours.items()}


def _itself(backend: Backend) -> Backend:
    return backend


def find_backends(names: Collection[str]) -> tuple[Backend, ...]:
    backends = known_backends() if names else {}
    for name in names:
        if name not in backends:
            raise InputError(f"no backend '{name}' to lower beside the target", hint=nearest(name, backends))
    return tuple(_loaded(name, backends[name]) for name in names)


def _loaded(name: str, load: Callable[[], Backend]) -> Backend:
    try:
        found = load()
    except Exception as e:
        why, hint = f"{type(e).__name__}: {e}", "install the package that brings it anew"
        raise TargetError(f"backend '{name}' does not load", why=why, hint=hint) from e
    if not isinstance(found, Backend):
        raise TargetError(f"backend '{name}' is a {type(found).__name__}", hint="its entry point must name a Backend")
    return found
