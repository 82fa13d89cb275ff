"""A delegate's payload decoded: the ops in order, the values they read and write, the bytes of its constants."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ingot.errors import ArtefactError


@dataclass(frozen=True)
class Call:
    """One op: its name as the runtime looks it up, the values it is given, the one it writes."""

    name: str
    given: tuple[int, ...]
    made: int


@dataclass(frozen=True, eq=False)
class Graph:
    calls: tuple[Call, ...]
    values: tuple[Any, ...]  # of the serialised kinds: VkTensor, Int, IntList, SymInt, ...
    constants: Mapping[int, torch.Tensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def dtype(self, value: int) -> torch.dtype:
        return dtype_of(self.values[value])


def dtype_of(tensor: Any) -> torch.dtype:
    """The schema's names are torch's, in capitals."""
    found = getattr(torch, tensor.datatype.name.lower())
    assert isinstance(found, torch.dtype)
    return found


def decoded(payload: bytes, named: Any) -> Graph:
    """`named` is the data that the program file keeps beside its delegates."""
    from executorch.backends.vulkan.serialization.vulkan_graph_serialize import (
        extract_vk_flatbuffer,
        flatbuffer_to_vk_graph,
    )

    try:
        graph = flatbuffer_to_vk_graph(extract_vk_flatbuffer(payload))
    except Exception as e:
        raise ArtefactError("the Vulkan delegate cannot be read", why=f"{type(e).__name__}: {e}") from e
    values = tuple(v.value for v in graph.values)
    found = {i: v for i, v in enumerate(values) if getattr(v, "constant_id", -1) >= 0}
    constants = {i: _constant(v, graph.constants[v.constant_id], named) for i, v in found.items()}
    calls = tuple(Call(c.name, tuple(c.args[:-1]), c.args[-1]) for c in graph.chain)
    return Graph(calls, values, constants, tuple(graph.input_ids), tuple(graph.output_ids))


def _constant(tensor: Any, place: Any, named: Any) -> torch.Tensor:
    entry = named.pte_data.get(place.named_key) if named else None
    if entry is None:
        raise ArtefactError("the Vulkan delegate lacks a constant", why=f"the file has no data named {place.named_key}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not to be written: nothing here writes into a constant, and copies are large
        stored = torch.frombuffer(named.buffers[entry.buffer_index], dtype=dtype_of(tensor))
    return stored[: math.prod(tensor.dims)].reshape(tensor.dims)
