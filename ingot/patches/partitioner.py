"""What ExecuTorch does once for every pair of ops, or with a copy of every weight: done so that depth costs little.

The partitioners write down, for each op, all ops that depend on it: for a decoder of thirty blocks that is half a
gigabyte. A backend is handed a copy of its program, weights and all. Whether a value is a weight is found by writing
down all weights, for every value. A delegate's outputs are found by running what is inside it. Here dependencies are
looked for when they are asked for, weights are shared, lists are kept, and what a delegate gives is read off its graph.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, get_type_hints
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, TensorArgument
from torch.fx import GraphModule, Node
from torch.fx.passes.utils.fuser_utils import validate_partition

LISTS = ("inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants")


@contextmanager
def deep() -> Iterator[None]:
    """For lowering."""
    from executorch.exir._serialize import _dataclass
    from executorch.exir._serialize._named_data_store import NamedDataStore as Store
    from executorch.exir.backend.backend_details import BackendDetails
    from executorch.exir.backend.canonical_partitioners import group_partitioner
    from executorch.exir.backend.utils import is_same_node
    from executorch.exir.pass_manager import ExportedProgramPassManager, PassManager
    from torch.fx.passes.infra import partitioner

    listed = _Listed()
    with ExitStack() as stack:
        for owner, name, new in (
            (partitioner, "_DependencyViewer", _Dependencies),
            (group_partitioner, "_DependencyViewer", _Dependencies),
            (group_partitioner.GroupBasedPartitioner, "_can_merge_partitions", _can_merge),
            (BackendDetails, "copy_exported_program_for_preprocess", classmethod(_with_the_same_weights)),
            (Store, "_add_named_data_to_map", _of_all_methods(Store._add_named_data_to_map)),
            (PassManager, "check", lambda *_: None),  # the artefact is executed: what is wrong with it shows
            (ExportedProgramPassManager, "check", lambda *_: None),
            (GraphModule, "print_readable", lambda *_, **__: ""),  # for a log that nobody reads
            (_dataclass, "get_type_hints", cache(get_type_hints)),
            *((ExportGraphSignature, name, listed.by(name)) for name in LISTS),
            *((kind, "__setattr__", listed.noticing(kind)) for kind in (InputSpec, TensorArgument)),
        ):
            stack.enter_context(patch.object(owner, name, new))
        stack.callback(is_same_node.cache_clear)  # which holds the ops of a graph, and so its weights, for good
        yield


class _Listed:
    """Lists of inputs by kind, kept until an input is written to: each is asked for at every op, and reads them all."""

    def __init__(self) -> None:
        self.writes, self.known = 0, dict[tuple[int, str], tuple[Any, Any]]()

    def noticing(self, owner: type[Any]) -> Callable[..., None]:
        write: Any = owner.__setattr__

        def written(spec: Any, name: str, value: Any) -> None:
            self.writes += 1
            write(spec, name, value)

        return written

    def by(self, name: str) -> property:
        whole = getattr(ExportGraphSignature, name).fget

        def listed(signature: ExportGraphSignature) -> Any:
            specs, key = signature.input_specs, (id(signature), name)
            seen, made = self.known.get(key, (None, None))
            now = (self.writes, len(specs), specs, signature)
            if seen is None or seen[:2] != now[:2] or seen[2] is not specs:
                made = whole(signature)
                self.known[key] = now, made  # both live on, so that nothing else gets their ids
            return made

        return property(listed)


class _Dependencies:
    """Of the few ops that somebody asks about."""

    def __init__(self, _: GraphModule) -> None:
        self.known = dict[Node, set[Node]]()

    def downstreams_of(self, node: Node) -> set[Node]:
        if node not in self.known:
            self.known[node] = _reached(node)
        return self.known[node]


def _reached(node: Node) -> set[Node]:
    found, todo = set[Node](), deque(node.users)
    while todo:
        if (after := todo.popleft()) not in found:
            found.add(after)
            todo.extend(after.users)
    return found


def _can_merge(_: Any, one: int, other: int, partitions: Any) -> bool:
    """Without a cycle: asked once, of the graph. ExecuTorch first asks the same of all that depends on each op."""
    return validate_partition([*partitions[one].nodes, *partitions[other].nodes])


def _with_the_same_weights(_: type, program: ExportedProgram, __: Any) -> ExportedProgram:
    tensors = (*program.state_dict.values(), *program.constants.values())
    return copy.deepcopy(program, {id(t): t for t in tensors if isinstance(t, torch.Tensor)})


def _of_all_methods(whole: Any) -> Callable[..., None]:
    """Weights that several methods have, in memory once: each brings bytes of its own."""
    known = dict[bytes, bytes]()

    def add(self: Any, key: str, data: Any, *how: Any, **named: Any) -> None:
        whole(self, key, known.setdefault(data, data) if isinstance(data, bytes) else data, *how, **named)

    return add


def given_by(delegate: Any, *read: Any) -> Any:
    """What its graph says that it gives. Not its parameters ask for gradients, but what it reads may."""
    out = next(n for n in reversed(delegate.original_module.graph.nodes) if n.op == "output")
    asks = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in read)
    return tuple(_asking(n.meta["val"].detach(), asks) for n in out.args[0])


def _asking(x: torch.Tensor, asks: bool) -> torch.Tensor:
    return x.requires_grad_(asks and x.dtype.is_floating_point)
