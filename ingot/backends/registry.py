"""Known extra backends: built-in, registered, and from entry points of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from importlib.metadata import entry_points

from ingot.backends.base import Backend
from ingot.backends.sampler.backend import SAMPLER, SAMPLER_RGBA
from ingot.errors import InputError, TargetError, nearest

GROUP = "ingot.backends"  # entry point group; each entry point names a Backend

_registered: dict[str, Backend] = {}


def register_backend(backend: Backend) -> Backend:
    """Make an extra backend known by its name in this process."""
    _registered[backend.name] = backend
    return backend


def known_backends() -> dict[str, Callable[[], Backend]]:
    """Loaders by name: a package is imported only when its backend is used."""
    built_in = {b.name: b for b in (SAMPLER, SAMPLER_RGBA)}
    installed = {e.name: e.load for e in entry_points(group=GROUP)}
    return installed | {name: partial(_itself, backend) for name, backend in (built_in | _registered).items()}


def _itself(backend: Backend) -> Backend:
    return backend


def find_backends(names: Collection[str]) -> tuple[Backend, ...]:
    backends = known_backends() if names else {}
    for name in names:
        if name not in backends:
            raise InputError(f"unknown extra backend '{name}'", hint=nearest(name, backends))
    return tuple(_loaded(name, backends[name]) for name in names)


def _loaded(name: str, load: Callable[[], Backend]) -> Backend:
    try:
        found = load()
    except Exception as e:
        why, hint = f"{type(e).__name__}: {e}", "install its package again"
        raise TargetError(f"backend '{name}' does not load", why=why, hint=hint) from e
    if not isinstance(found, Backend):
        raise TargetError(f"backend '{name}' is a {type(found).__name__}", hint="its entry point must name a Backend")
    return found
