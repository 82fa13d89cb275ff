"""Decodes the payload of a Vulkan delegate: its op calls, values and constants."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ingot.errors import ArtefactError
from ingot.patches.vulkan import vulkan_payloads


@dataclass(frozen=True)
class OpCall:
    """One op: its name in the runtime's registry, and the indices of its arguments and of its result."""

    name: str
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True, eq=False)
class VulkanGraph:
    calls: tuple[OpCall, ...]
    values: tuple[Any, ...]  # of the schema's types: VkTensor, Int, IntList, SymInt, ...
    constants: Mapping[int, torch.Tensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def dtype(self, value: int) -> torch.dtype:
        return torch_dtype(self.values[value])


def torch_dtype(tensor: Any) -> torch.dtype:
    """The schema has torch's names in capitals."""
    found = getattr(torch, tensor.datatype.name.lower())
    assert isinstance(found, torch.dtype)
    return found


def decode_delegate(payload: bytes, named: Any) -> VulkanGraph:
    """`named`: the named data of the .pte, in which the constants are."""
    from executorch.backends.vulkan.serialization.vulkan_graph_serialize import (
        extract_vk_flatbuffer,
        flatbuffer_to_vk_graph,
    )

    try:
        with vulkan_payloads():
            graph = flatbuffer_to_vk_graph(extract_vk_flatbuffer(payload))
    except Exception as e:
        raise ArtefactError("the Vulkan delegate cannot be read", why=f"{type(e).__name__}: {e}") from e
    values = tuple(v.value for v in graph.values)
    found = {i: v for i, v in enumerate(values) if getattr(v, "constant_id", -1) >= 0}
    constants = {i: _constant(v, graph.constants[v.constant_id], named) for i, v in found.items()}
    calls = tuple(OpCall(c.name, tuple(c.args[:-1]), c.args[-1]) for c in graph.chain)
    return VulkanGraph(calls, values, constants, tuple(graph.input_ids), tuple(graph.output_ids))


def _constant(tensor: Any, reference: Any, named: Any) -> torch.Tensor:
    if math.prod(tensor.dims) == 0:  # the file has no data for it
        return torch.empty(list(tensor.dims), dtype=torch_dtype(tensor))
    entry = named.pte_data.get(reference.named_key) if named else None
    if entry is None:
        raise ArtefactError(
            "a constant of the Vulkan delegate is missing", why=f"the file has no data named {reference.named_key}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the buffer is read-only; nothing writes to a constant
        stored = torch.frombuffer(named.buffers[entry.buffer_index], dtype=torch_dtype(tensor))
    return stored[: math.prod(tensor.dims)].reshape(tensor.dims)
