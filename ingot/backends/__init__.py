"""Delegates beside the target's: a backend that owns some ops, and how one's own is added."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from torch.fx import Node

from ingot.errors import InputError, TargetError, nearest
from ingot.targets.base import Ability
from ingot.targets.pieces import Executor

__all__ = ["Backend", "Shader", "add", "find", "known", "owning"]
GROUP = "ingot.backends"  # of packages that bring one: the entry point names a Backend


@dataclass(frozen=True)
class Shader:
    """A delegate as a compute shader."""

    file: str
    spirv: bytes
    constants: tuple[tuple[int, int | float], ...]  # specialization constants by id
    groups: tuple[int, int, int]
    bindings: tuple[int, ...]  # of set 0, for what it reads, then what it writes, in the order of its arguments
    textures: Mapping[int, str] = field(default_factory=dict)  # bindings that are images, and their Vulkan format


@dataclass(frozen=True)
class Backend:
    """The ops it owns are its own: the target neither sees nor takes them, nor the roundings beside them."""

    name: str
    backend_id: str  # by which a program names it
    # What it does with an op beside a target that stores these precisions; None: not one of its ops.
    ability: Callable[[Node, Collection[str]], Ability | None]
    partitioner: Callable[[], Any]  # ExecuTorch's kind; sees the op whole, with its dequantizes and its quantize
    run: Executor  # its delegates on this machine, to verify the program with
    description: str = ""
    rules: Callable[[], tuple[Any, ...]] = tuple  # rewrites of what it owns, before anything is planned
    shader: Callable[[bytes], Shader] | None = None  # its delegates in a scenario, from their payload


def owning(*ops: str, precisions: Collection[str] = ("float",)) -> Callable[[Node, Collection[str]], Ability | None]:
    """An ability by names of ops ("mylib::blur", "aten::grid_sampler_2d"; `*` stands for any): the same for all."""

    def ability(node: Node, stored: Collection[str]) -> Ability | None:
        name = str(getattr(getattr(node.target, "_schema", None), "name", ""))
        if not any(fnmatchcase(name, pattern) for pattern in ops):
            return None
        return Ability(frozenset(precisions) & {*stored, "float"}, f"owned by name: {name}")

    return ability


_added: dict[str, Backend] = {}


def add(backend: Backend) -> Backend:
    """Make a backend known under its name: recipes may then ask for it with `beside`."""
    _added[backend.name] = backend
    return backend


def known() -> dict[str, Callable[[], Backend]]:
    """By name; each is loaded when it is asked for."""
    from ingot.backends.sampler import SAMPLER, SAMPLER_RGBA

    ours = {b.name: b for b in (SAMPLER, SAMPLER_RGBA)} | _added
    brought = {e.name: e.load for e in entry_points(group=GROUP)}
    return brought | {name: partial(_itself, backend) for name, backend in ours.items()}


def _itself(backend: Backend) -> Backend:
    return backend


def find(names: Collection[str]) -> tuple[Backend, ...]:
    backends = known() if names else {}
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
