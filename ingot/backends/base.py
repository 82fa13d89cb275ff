"""An extra backend: the ops that it owns beside a target, and how they are lowered and run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch.fx import Node

from ingot.targets.base import Ability, Executor, RewriteRule


@dataclass(frozen=True)
class Shader:
    """A delegate as a compute shader, for a scenario of Arm's scenario-runner."""

    file: str  # name in the scenario's folder
    spirv: bytes
    constants: tuple[tuple[int, int | float], ...]  # specialization constants by id
    groups: tuple[int, int, int]  # work groups along x, y, z
    bindings: tuple[int, ...]  # ids in set 0, of the delegate's inputs, then of its outputs
    textures: Mapping[int, str] = field(default_factory=dict)  # binding of an image -> its Vulkan format


@dataclass(frozen=True)
class Backend:
    """A backend beside a target. It owns some ops: the target sees neither these nor their Q/DQ."""

    name: str
    backend_id: str  # as in the .pte: the name of the BackendDetails class
    # In which precisions it runs an op, given the names of the target's formats; None: it does not own the op.
    ability: Callable[[Node, Collection[str]], Ability | None]
    partitioner: Callable[[], Any]  # an ExecuTorch partitioner; it sees each owned op with its Q/DQ
    run: Executor  # runs its delegates on this machine, for verification
    description: str = ""
    rules: Callable[[], tuple[RewriteRule, ...]] = tuple  # rewrites of owned ops, before planning
    shader: Callable[[bytes], Shader] | None = None  # payload -> shader, for scenarios


def owning(*ops: str, precisions: Collection[str] = ("float",)) -> Callable[[Node, Collection[str]], Ability | None]:
    """An `ability` for ops by name: "mylib::blur", "aten::grid_sampler_2d"; `*` matches anything."""

    def ability(node: Node, formats: Collection[str]) -> Ability | None:
        name = str(getattr(getattr(node.target, "_schema", None), "name", ""))
        if not any(fnmatchcase(name, pattern) for pattern in ops):
            return None
        return Ability(frozenset(precisions) & {*formats, "float"}, f"an extra backend owns {name}")

    return ability
