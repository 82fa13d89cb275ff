"""Where the elements of an output come from: which op made each, and as which of its channels.

A `cat` or `stack` joins numbers of different units: boxes in pixels beside scores. Such a join is not looked for by
name. From the output back, ops that only move numbers are run on ids instead of values. A pointwise op makes new
numbers out of the moved ones: each id becomes another one. Every other op is a producer: all its elements share an id.
Channels are found alike: those of the last op with a weight, wherever they were moved to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.op_semantics import Kind, effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, has_symbols, is_float, output_nodes, value_of

FIRST_ID = 1 << 20  # exact in float32, and hardly a constant that somebody pads with
NO_OP = 0  # the id of what no op made: the fill value of a pad


@dataclass(frozen=True)
class Origin:
    """Of each element of one output, counted from 0. None: one op made them all; no channels are known."""

    groups: Tensor | None = None
    channels: Tensor | None = None


def origins(module: GraphModule, batch: Sequence[Tensor]) -> list[Origin]:
    """By output of the program, for the shapes of this batch."""
    dynamic = any(_is_dynamic(n) for n in module.graph.nodes)
    tail = _Tail(_values(module, batch) if dynamic else {})
    return [_origin(tail, node) if is_float(node) else Origin() for node in output_nodes(module)]


def joined_groups(module: GraphModule) -> dict[Node, Tensor]:
    """By output whose elements several ops made: the group of each element. Empty for dynamic shapes."""
    if any(_is_dynamic(n) for n in module.graph.nodes):
        return {}
    tail, outputs = _Tail({}), [n for n in output_nodes(module) if is_float(n)]
    return {n: groups for n in dict.fromkeys(outputs) if (groups := _numbered(tail.ids(n))) is not None}


def _origin(tail: _Tail, node: Node) -> Origin:
    channels = tail.channels(node)
    return Origin(_numbered(tail.ids(node)), None if channels is None else _numbered(channels))


def _numbered(ids: Tensor) -> Tensor | None:
    found = torch.where((ids >= FIRST_ID) & (ids == ids.round()), ids, float(NO_OP))
    names, numbers = found.unique(return_inverse=True)
    return numbers.reshape(ids.shape) if len(names) > 1 else None


class _Tail:
    """The end of a graph, evaluated on ids."""

    def __init__(self, known: Mapping[Node, Any]) -> None:
        self.known = known
        self.ids_of = dict[Node, Tensor]()
        self.channels_of = dict[Node, "Tensor | None"]()
        self.names = dict[tuple[Node, float], int]()

    def ids(self, node: Node) -> Tensor:
        if node not in self.ids_of:
            self.ids_of[node] = self._ids(node)
        return self.ids_of[node]

    def channels(self, node: Node) -> Tensor | None:
        if node not in self.channels_of:
            self.channels_of[node] = self._channels(node)
        return self.channels_of[node]

    def _ids(self, node: Node) -> Tensor:
        moved = self._moved(node, self.ids)
        varying = [n for n in operands(node) if constant_of(n) is None]
        if moved is None and _is_pointwise(node) and len(varying) == 1 and is_float(varying[0]):
            return self._renamed(node, self.ids(varying[0]))
        return self._made_by(node) if moved is None else moved

    def _channels(self, node: Node) -> Tensor | None:
        """Those of the nearest op upstream that has a weight, through ops that keep the shape or move numbers."""
        waiting, seen = [node], {node}
        for nearest in waiting:
            if nearest.op != "call_function" or not is_float(nearest):
                continue
            if (found := self._own_channels(nearest)) is not None:
                return found
            alike = [n for n in operands(nearest) if is_float(n) and self._shape(n) == self._shape(node)]
            waiting += [n for n in dict.fromkeys(alike) if n not in seen]
            seen |= {*alike}
        return None

    def _own_channels(self, node: Node) -> Tensor | None:
        if weight_axis(node) is None:
            return self._moved(node, self.channels)
        return self._numbers_along(node, len(self._shape(node)) - (len(self._shape(operands(node)[1])) - 1))

    def _moved(self, node: Node, known: Callable[[Node], Tensor | None]) -> Tensor | None:
        """An op that only moves numbers, run on ids; None for other ops, and if values decide what is moved."""
        if node.op != "call_function" or not is_float(node) or _writes(node):
            return None
        effect = effect_of(node, constant_of)
        if effect.kind is not Kind.MOVES:
            return None
        carriers = {operands(node)[i] for i in effect.carriers}
        given = {n: known(n) if n in carriers else self._constant(n) for n in operands(node)}
        return None if any(v is None for v in given.values()) else self._run(node, given)

    def _run(self, node: Node, given: Mapping[Node, Any]) -> Tensor | None:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), given.__getitem__)
        try:
            made: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
        except RuntimeError:  # no kernel for doubles
            return None
        return made.double() if made.shape == self._shape(node) else None

    def _constant(self, node: Node) -> Any:
        known = constant_of(node)
        return known if known is not None or isinstance(value_of(node), Tensor) else self.known.get(node)

    def _renamed(self, node: Node, ids: Tensor) -> Tensor:
        found, inverse = ids.expand(self._shape(node)).unique(return_inverse=True)
        return torch.tensor([float(self._name(node, float(i))) for i in found], dtype=torch.float64)[inverse]

    def _made_by(self, node: Node) -> Tensor:
        return torch.full(self._shape(node), float(self._name(node, NO_OP)), dtype=torch.float64)

    def _name(self, node: Node, of: float) -> int:
        return self.names.setdefault((node, of), FIRST_ID + len(self.names))

    def _numbers_along(self, node: Node, axis: int) -> Tensor:
        shape = self._shape(node)
        numbers = FIRST_ID + torch.arange(shape[axis], dtype=torch.float64)
        return numbers.view(-1, *[1] * (len(shape) - 1 - axis)).expand(shape)

    def _shape(self, node: Node) -> torch.Size:
        value = self.known.get(node, value_of(node))
        return torch.Size(value.shape)


def _is_pointwise(node: Node) -> bool:
    return node.op == "call_function" and is_float(node) and torch.Tag.pointwise in getattr(node.target, "tags", ())


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or bool(schema.is_mutable)


def _is_dynamic(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.SymInt) or (isinstance(value, Tensor) and has_symbols(value.shape))


def _values(module: GraphModule, batch: Sequence[Tensor]) -> dict[Node, Any]:
    """Shapes (as tensors without memory) and numbers of all values for this batch; computed only if values matter."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _kept(module, [mode.from_tensor(t) for t in batch])
    except (DataDependentOutputException, RuntimeError, NotImplementedError):
        return _kept(module, batch)


def _kept(module: GraphModule, batch: Sequence[Tensor]) -> dict[Node, Any]:
    found = dict[Node, Any]()

    class Keep(Interpreter):
        def run_node(self, n: Node) -> Any:
            made = super().run_node(n)
            found[n] = torch.empty(made.shape, device="meta") if isinstance(made, Tensor) else made
            return made

    with torch.no_grad():
        Keep(module, garbage_collect_values=True).run(*batch, enable_io_processing=False)
    return found
