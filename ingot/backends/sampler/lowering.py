"""Lowering of grid_sample: the partitioner, and the payload of a delegate."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch.fx import Node

from ingot.backends.sampler.payload import MODES, PADDINGS, SampleJob, TensorSpec
from ingot.quantize.memory_format import layout_of

CLONE = "_clone_dim_order"


class IngotSampler(BackendDetails):
    """The class name is the backend id in the .pte."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(_job(edge_program.graph.nodes).to_bytes())


class SamplerPartitioner(Partitioner):
    """Each grid_sample is one delegate, with its Q/DQ and the layout change of its result."""

    def partition(self, exported_program: Any) -> PartitionResult:
        tags = {}
        for i, node in enumerate(n for n in exported_program.graph.nodes if _is_sampler(n)):
            tags[tag := f"sampler{i}"] = DelegationSpec(IngotSampler.__name__, [])
            for member in (*_dequantizes(node), node, *_layout_and_quantize(node)):
                member.meta["delegation_tag"] = tag
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


def _is_sampler(node: Node) -> bool:
    return _op_name(node) in ("grid_sampler", "grid_sampler_2d")


def _op_name(node: Node) -> str:
    """Of an op of ATen or of the edge dialect, without namespace."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    return schema.name.rpartition("::")[2] if schema is not None else ""


def _dequantizes(node: Node) -> list[Node]:
    """Those of its inputs that nothing else reads."""
    return [n for n in _image_and_grid(node) if _op_name(n) == "dequantize_per_tensor" and len(n.users) == 1]


def _layout_and_quantize(node: Node) -> list[Node]:
    """The ops between it and its consumer: a change of layout, a quantize."""
    found, last = list[Node](), node
    for name in (CLONE, "quantize_per_tensor"):
        user = next(iter(last.users)) if len(last.users) == 1 else last
        if _op_name(user) == name:
            found, last = [*found, user], user
    return found


def _image_and_grid(node: Node) -> tuple[Node, Node]:
    return cast(tuple[Node, Node], node.args[:2])


# ---- the payload ----


def _job(nodes: Collection[Node]) -> SampleJob:
    sampler = next(n for n in nodes if _is_sampler(n))
    how = cast(tuple[int, int, bool], (*sampler.args[2:5], *(0, 0, False)[len(sampler.args) - 2 :]))
    image, grid = _image_and_grid(sampler)
    last = (sampler, *_layout_and_quantize(sampler))[-1]
    specs = (_input_spec(image), _input_spec(grid), _spec(last, last))
    return SampleJob(MODES[how[0]], PADDINGS[how[1]], bool(how[2]), *specs, grid_first=_comes_first(grid, image, nodes))


def _comes_first(one: Node, other: Node, nodes: Collection[Node]) -> bool:
    """In the order of the delegate's arguments, which is that of their first uses."""
    inputs = [n for n in nodes if n.op == "placeholder"]
    places = [inputs.index(n if n in inputs else n.all_input_nodes[0]) for n in (one, other)]
    return places[0] < places[1]


def _input_spec(read: Node) -> TensorSpec:
    return _spec(read.all_input_nodes[0], read) if _op_name(read) == "dequantize_per_tensor" else _spec(read, read)


def _spec(tensor: Node, qdq: Node) -> TensorSpec:
    """Of `tensor`, with the qparams of the quantize or dequantize `qdq` (the tensor itself if it is float)."""
    value: torch.Tensor = tensor.meta["val"]
    shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if "quantize_per_tensor" not in _op_name(qdq):
        return TensorSpec(dtype, shape, layout_of(value))
    scale, zero, low, high = cast(tuple[float, int, int, int], qdq.args[1:5])
    return TensorSpec(dtype, shape, layout_of(value), float(scale), int(zero), int(low), int(high))
