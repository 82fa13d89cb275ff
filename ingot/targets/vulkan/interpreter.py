"""A decoded Vulkan graph, op by op in torch: what its shaders are asked to compute, from the bytes that they will read.

An op of ATen is itself; a fused op is written out in `kernels`. Types and shapes are held to what the graph declares.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch

from ingot.errors import ArtefactError
from ingot.targets.vulkan.graph import Call, Graph, decoded
from ingot.targets.vulkan.kernels import KERNELS


class Delegates:
    """Runs the delegates of one program, whose constants lie beside them in the file."""

    def __init__(self, named: Any) -> None:
        self.named, self.graphs = named, dict[bytes, Graph]()

    def __call__(self, payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
        graph = self._graph(payload)
        with torch.no_grad():
            return [interpreted(graph, [torch.from_numpy(a) for a in arrays]) for arrays in batches]

    def _graph(self, payload: bytes) -> Graph:
        """Decoded once: with state it is called batch by batch."""
        if payload not in self.graphs:
            self.graphs[payload] = decoded(payload, self.named)
            refuse_unknown(self.graphs[payload])
        return self.graphs[payload]


def refuse_unknown(graph: Graph) -> None:
    """The partitioner takes ops that the runtime does not register; only a device would find that out."""
    lacking = sorted({c.name for c in graph.calls} - _registered())
    if lacking:
        why = f"its runtime registers no {', '.join(lacking)}"
        raise ArtefactError("the Vulkan delegate holds what no shader computes", why=why)


@lru_cache(maxsize=1)
def _registered() -> frozenset[str]:
    """A list, since no runtime is at hand to ask."""
    lines = files("ingot.targets.vulkan").joinpath("shaders.txt").read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def interpreted(graph: Graph, given: list[torch.Tensor]) -> list[Any]:
    held: dict[int, Any] = dict(graph.constants)
    held |= {i: _as_declared(graph, i, x) for i, x in zip(graph.inputs, given, strict=True)}
    for call in graph.calls:
        _store(graph, held, call, _made(graph, held, call))
    return [held[i].contiguous().numpy() if isinstance(held[i], torch.Tensor) else held[i] for i in graph.outputs]


def _as_declared(graph: Graph, value: int, x: Any) -> Any:
    """Of the declared type; shapes that vary are declared by the largest."""
    if not isinstance(x, torch.Tensor) or not hasattr(graph.values[value], "dims"):
        return x
    most = graph.values[value].dims
    if len(most) != x.dim() or any(a > b for a, b in zip(x.shape, most, strict=True)):
        why = f"a value of {tuple(x.shape)} is declared as {tuple(most)}"
        raise ArtefactError("the Vulkan delegate contradicts itself", why=why)
    return x.to(graph.dtype(value))


def _store(graph: Graph, held: dict[int, Any], call: Call, made: Any) -> None:
    several = hasattr(graph.values[call.made], "items")
    places = graph.values[call.made].items if several else [call.made]
    for place, x in zip(places, made if several else [made], strict=True):
        held[place] = _as_declared(graph, place, x)


def _made(graph: Graph, held: dict[int, Any], call: Call) -> Any:
    given = [_argument(graph, held, i) for i in call.given]
    try:
        return KERNELS[call.name](*given) if call.name in KERNELS else _by_torch(call.name, given)
    except ArtefactError:
        raise
    except Exception as e:
        why = f"{type(e).__name__}: {str(e).splitlines()[0]}"
        raise ArtefactError(f"{call.name} of the Vulkan delegate cannot be run", why=why) from e


def _argument(graph: Graph, held: dict[int, Any], value: int) -> Any:
    if value in held:
        return held[value]
    kind, stored = type(graph.values[value]).__name__, graph.values[value]
    if kind == "ValueList":
        return [_argument(graph, held, i) for i in stored.items]
    if kind == "Null":
        return None
    return next(iter(vars(stored).values()))  # a number, a text or a list of numbers


def _by_torch(name: str, given: list[Any]) -> Any:
    """By the op of that name; a type among its arguments is not in the file, the value that it makes has it."""
    *path, packet, overload = ["", *name.split(".")]
    if not path:
        return getattr(operator, overload)(*given)  # of python's numbers
    op = getattr(getattr(getattr(torch.ops, path[-1] or "aten"), packet), overload)
    schema = op._schema.arguments
    named = {a.name: x for a, x in zip(schema, given, strict=True) if a.kwarg_only and x is not None}
    return op(*(x for a, x in zip(schema, given, strict=True) if not a.kwarg_only), **named)
