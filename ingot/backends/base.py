"""What a backend beside the target is: the ops it owns, how they are lowered and run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch.fx import Node

from ingot.runtime.segments import Executor
from ingot.targets.base import Ability


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
