"""Replacements for work of ExecuTorch that grows with the square of the number of ops, or that copies weights.

The partitioners store, for each op, all ops that depend on it: half a gigabyte for a decoder of thirty blocks. A
backend gets a copy of its program with all weights. The maps from inputs to weights are rebuilt for each op. Here
dependencies are found on demand, weights are shared and maps are cached.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.utils.fuser_utils import validate_partition

_Session = dict[str, Any]


def lazy_dependency_viewer(_original: Any, _session: _Session) -> type:
    return _LazyDependencyViewer


class _LazyDependencyViewer:
    """Finds the dependents of an op when they are asked for."""

    def __init__(self, _: GraphModule) -> None:
        self.known = dict[Node, set[Node]]()

    def downstreams_of(self, node: Node) -> set[Node]:
        if node not in self.known:
            self.known[node] = _all_downstream(node)
        return self.known[node]


def _all_downstream(node: Node) -> set[Node]:
    found, queue = set[Node](), deque(node.users)
    while queue:
        if (user := queue.popleft()) not in found:
            found.add(user)
            queue.extend(user.users)
    return found


def can_merge_partitions(_original: Any, _session: _Session) -> Callable[..., bool]:
    """One search for cycles in the graph. ExecuTorch first searches among the dependents of each op."""

    def can_merge(_: Any, one: int, other: int, partitions: Any) -> bool:
        return validate_partition([*partitions[one].nodes, *partitions[other].nodes])

    return can_merge


def copy_sharing_weights(_original: Any, _session: _Session) -> Any:
    def copied(_: type, program: ExportedProgram, __: Any) -> ExportedProgram:
        tensors = (*program.state_dict.values(), *program.constants.values())
        return copy.deepcopy(program, {id(t): t for t in tensors if isinstance(t, torch.Tensor)})

    return classmethod(copied)


def deduplicated_named_data(original: Any, _session: _Session) -> Callable[..., None]:
    """Keep equal bytes once: each method of a program brings its own copy of the shared weights."""
    known = dict[bytes, bytes]()

    def add(self: Any, key: str, data: Any, *args: Any, **kwargs: Any) -> None:
        original(self, key, known.setdefault(data, data) if isinstance(data, bytes) else data, *args, **kwargs)

    return add


def no_check(_original: Any, _session: _Session) -> Callable[..., None]:
    return lambda *_: None


def no_text(_original: Any, _session: _Session) -> Callable[..., str]:
    return lambda *_, **__: ""


def cached_type_hints(original: Any, _session: _Session) -> Any:
    return cache(original)


# ---- maps of a graph signature ----


def cached_signature_map(original: property, session: _Session) -> property:
    """The map, rebuilt only after a write to an input spec."""
    build: Any = original.fget
    known = dict[int, tuple[Any, Any]]()  # holds signatures and specs too, so that no other object gets their ids

    def cached(signature: Any) -> Any:
        specs = signature.input_specs
        seen, made = known.get(id(signature), (None, None))
        now = (session.get("spec_writes", 0), len(specs), specs, signature)
        if seen is None or seen[:2] != now[:2] or seen[2] is not specs:
            made = build(signature)
            known[id(signature)] = now, made
        return made

    return property(cached)


def counted_setattr(original: Any, session: _Session) -> Callable[..., None]:
    def setattr_(spec: Any, name: str, value: Any) -> None:
        session["spec_writes"] = session.get("spec_writes", 0) + 1
        original(spec, name, value)

    return setattr_
