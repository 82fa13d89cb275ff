"""What an extra backend is: the ops it owns, how they are lowered and run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch.fx import Node

from ingot.targets.base import Ability, Executor, RewriteRule


@dataclass(frozen=True)
class Shader:
    """A delegate as a compute shader."""

    file: str
    spirv: bytes
    constants: tuple[tuple[int, int | float], ...]  # specialization constants by id
    groups: tuple[int, int, int]
    bindings: tuple[int, ...]  # of set 0: what it reads, then what it writes, in the order of its arguments
    textures: Mapping[int, str] = field(default_factory=dict)  # bindings that are images, and their Vulkan format


@dataclass(frozen=True)
class Backend:
    """A backend beside a target. It owns some ops: the target sees neither them nor their quantize and dequantize."""

    name: str
    backend_id: str  # as a program names it
    # What it does with an op, given the precisions of the target; None: not one of its ops.
    ability: Callable[[Node, Collection[str]], Ability | None]
    partitioner: Callable[[], Any]  # an ExecuTorch partitioner; it sees the op with its dequantizes and its quantize
    run: Executor  # runs its delegates on this machine, for verification
    description: str = ""
    rules: Callable[[], tuple[RewriteRule, ...]] = tuple  # rewrites of what it owns, before planning
    shader: Callable[[bytes], Shader] | None = None  # its delegates in a scenario, from their payload


def owning(*ops: str, precisions: Collection[str] = ("float",)) -> Callable[[Node, Collection[str]], Ability | None]:
    """An ability by names of ops ("mylib::blur", "aten::grid_sampler_2d"; `*` stands for any): the same for all."""

    def ability(node: Node, stored: Collection[str]) -> Ability | None:
        name = str(getattr(getattr(node.target, "_schema", None), "name", ""))
        if not any(fnmatchcase(name, pattern) for pattern in ops):
            return None
        return Ability(frozenset(precisions) & {*stored, "float"}, f"owned by name: {name}")

    return ability
