"""grid_sample in a program -> a delegate of ours: which nodes it takes, and the job they make."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch.fx import Node

from ingot.backends.sampler.job import MODES, PADDINGS, Job, Side
from ingot.quantize.memory_format import layout_of

CLONE = "_clone_dim_order"


class IngotSampler(BackendDetails):
    """The name of this class is the name of the backend in the file."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(job_of(edge_program.graph.nodes).to_bytes())


class SamplerPartitioner(Partitioner):
    """Each sampler is a delegate of its own, with the roundings and the layout around it."""

    def partition(self, exported_program: Any) -> PartitionResult:
        tags = {}
        for i, node in enumerate(n for n in exported_program.graph.nodes if is_sampler(n)):
            tags[tag := f"sampler{i}"] = DelegationSpec(IngotSampler.__name__, [])
            for member in (*_read(node), node, *_made(node)):
                member.meta["delegation_tag"] = tag
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


def is_sampler(node: Node) -> bool:
    return name_of(node) in ("grid_sampler", "grid_sampler_2d")


def name_of(node: Node) -> str:
    """Of an op of ATen or of the edge dialect."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    return schema.name.rpartition("::")[2] if schema is not None else ""


def _read(node: Node) -> list[Node]:
    """Its dequantizes: they are its own, one for each reader."""
    return [n for n in _sides(node) if name_of(n) == "dequantize_per_tensor" and len(n.users) == 1]


def _made(node: Node) -> list[Node]:
    """What stands between it and its reader: a layout, a quantize."""
    found, last = list[Node](), node
    for name in (CLONE, "quantize_per_tensor"):
        user = next(iter(last.users)) if len(last.users) == 1 else last
        if name_of(user) == name:
            found, last = [*found, user], user
    return found


def _sides(node: Node) -> tuple[Node, Node]:
    return cast(tuple[Node, Node], node.args[:2])


# ---- the job ----


def job_of(nodes: Collection[Node]) -> Job:
    sampler = next(n for n in nodes if is_sampler(n))
    how = cast(tuple[int, int, bool], (*sampler.args[2:5], *(0, 0, False)[len(sampler.args) - 2 :]))
    image, grid = _sides(sampler)
    last = (sampler, *_made(sampler))[-1]
    stored = (_stored(image), _stored(grid), _side(last, last))
    return Job(MODES[how[0]], PADDINGS[how[1]], bool(how[2]), *stored, grid_first=_comes_first(grid, image, nodes))


def _comes_first(one: Node, other: Node, nodes: Collection[Node]) -> bool:
    """In the order of the arguments, which is that of their first uses."""
    inputs = [n for n in nodes if n.op == "placeholder"]
    places = [inputs.index(n if n in inputs else n.all_input_nodes[0]) for n in (one, other)]
    return places[0] < places[1]


def _stored(read: Node) -> Side:
    return _side(read.all_input_nodes[0], read) if name_of(read) == "dequantize_per_tensor" else _side(read, read)


def _side(tensor: Node, rounding: Node) -> Side:
    """A tensor, and the op beside it that tells its scale (itself where it is float)."""
    value: torch.Tensor = tensor.meta["val"]
    shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if "quantize_per_tensor" not in name_of(rounding):
        return Side(dtype, shape, layout_of(value))
    scale, zero, low, high = cast(tuple[float, int, int, int], rounding.args[1:5])
    return Side(dtype, shape, layout_of(value), float(scale), int(zero), int(low), int(high))
