"""Interprets a decoded Vulkan graph op by op in torch, with the constants from the file.

ATen ops run as they are, fused ops as in `kernels`. Types and shapes are checked against those that the graph declares.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch

from ingot.errors import ArtefactError
from ingot.targets.vulkan.graph import OpCall, VulkanGraph, decode_delegate
from ingot.targets.vulkan.shader_reference import KERNELS


class DelegateInterpreter:
    """An Executor for the delegates of one .pte. `named`: its named data, with the constants."""

    def __init__(self, named: Any) -> None:
        self.named, self.graphs = named, dict[bytes, VulkanGraph]()

    def __call__(self, payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
        graph = self._graph(payload)
        if len(graph.outputs) != outputs:
            why = f"it gives {len(graph.outputs)} outputs, the program takes {outputs}"
            raise ArtefactError("the Vulkan delegate cannot be run", why=why)
        with torch.no_grad():
            return [interpret(graph, [torch.from_numpy(a) for a in arrays]) for arrays in batches]

    def _graph(self, payload: bytes) -> VulkanGraph:
        """Decoded once: a program with state is run batch by batch."""
        if payload not in self.graphs:
            self.graphs[payload] = decode_delegate(payload, self.named)
            check_registered(self.graphs[payload])
        return self.graphs[payload]


def check_registered(graph: VulkanGraph) -> None:
    """Refuse ops that the runtime does not register. The partitioner takes some, and only a device would fail."""
    missing = sorted({c.name for c in graph.calls} - registered_shaders())
    if missing:
        why = f"its runtime does not register {', '.join(missing)}"
        raise ArtefactError("the Vulkan delegate has ops without a shader", why=why)


@lru_cache(maxsize=1)
def registered_shaders() -> frozenset[str]:
    """From a file: the ExecuTorch wheel has no Vulkan runtime to query."""
    lines = files("ingot.targets.vulkan").joinpath("shaders.txt").read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def interpret(graph: VulkanGraph, given: list[torch.Tensor]) -> list[Any]:
    """The outputs as numpy arrays, or as numbers."""
    if len(given) != len(graph.inputs):
        why = f"it takes {len(graph.inputs)} inputs, the program gives {len(given)}"
        raise ArtefactError("the Vulkan delegate cannot be run", why=why)
    held: dict[int, Any] = dict(graph.constants)
    held |= {i: _as_declared(graph, i, x) for i, x in zip(graph.inputs, given, strict=True)}
    for call in graph.calls:
        _store(graph, held, call, _run(graph, held, call))
    return [held[i].contiguous().numpy() if isinstance(held[i], torch.Tensor) else held[i] for i in graph.outputs]


def _as_declared(graph: VulkanGraph, value: int, x: Any) -> Any:
    """Converted to the declared type. A dynamic shape is declared by its upper bound."""
    if not isinstance(x, torch.Tensor) or not hasattr(graph.values[value], "dims"):
        return x
    bound = graph.values[value].dims
    if len(bound) != x.dim() or any(a > b for a, b in zip(x.shape, bound, strict=True)):
        why = f"a value has shape {tuple(x.shape)}, declared is {tuple(bound)}"
        raise ArtefactError("the Vulkan delegate computes an undeclared shape", why=why)
    return x.to(graph.dtype(value))


def _store(graph: VulkanGraph, held: dict[int, Any], call: OpCall, result: Any) -> None:
    several = hasattr(graph.values[call.output], "items")
    indices = graph.values[call.output].items if several else [call.output]
    for index, x in zip(indices, result if several else [result], strict=True):
        held[index] = _as_declared(graph, index, x)


def _run(graph: VulkanGraph, held: dict[int, Any], call: OpCall) -> Any:
    given = [_argument(graph, held, i) for i in call.inputs]
    try:
        return KERNELS[call.name](*given) if call.name in KERNELS else _by_torch(call.name, given)
    except ArtefactError:
        raise
    except Exception as e:
        why = f"{type(e).__name__}: {str(e).splitlines()[0]}"
        raise ArtefactError(f"{call.name} of the Vulkan delegate cannot be run", why=why) from e


def _argument(graph: VulkanGraph, held: dict[int, Any], value: int) -> Any:
    if value in held:
        return held[value]
    kind, stored = type(graph.values[value]).__name__, graph.values[value]
    if kind == "ValueList":
        return [_argument(graph, held, i) for i in stored.items]
    if kind == "Null":
        return None
    return next(iter(vars(stored).values()))  # a number, a string or a list of numbers


def _by_torch(name: str, given: list[Any]) -> Any:
    """By the torch op of that name. The file has no dtype arguments: the result gets its declared type."""
    *path, packet, overload = ["", *name.split(".")]
    if not path:
        return getattr(operator, overload)(*given)  # arithmetic on Python numbers
    op = getattr(getattr(getattr(torch.ops, path[-1] or "aten"), packet), overload)
    schema = op._schema.arguments
    named = {a.name: x for a, x in zip(schema, given, strict=True) if a.kwarg_only and x is not None}
    return op(*(x for a, x in zip(schema, given, strict=True) if not a.kwarg_only), **named)
