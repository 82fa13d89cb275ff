"""The residual stream of a decoder: embeddings and linears write it, norms and linears read it, nothing else does.

Such a stream can be rotated by any orthogonal matrix R without changing the model: writers give R y, readers undo R.
Whether an op commutes with R is computed, not inferred from its name: it runs on random values with and without R.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.fx import constant_of, value_of
from ingot.weight_only.scheme import WeightLayer, has_constant_bias

aten = torch.ops.aten
ROTATION_TOLERANCE = 1e-4  # of the largest magnitude: float32 through a norm is more exact
PROBE_SCALES = (0.01, 1.0, 1000.0)  # of the random values: clipping shows on large values, an offset on small ones
SEED = 20
ROTATED, INVARIANT, INTERMEDIATE = "rotated", "invariant", "intermediate"


@dataclass(frozen=True, eq=False)
class StreamReader:
    """How a linear reads the stream: the node that multiplies by the gain of a norm, and that gain, if any."""

    norm_product: str | None = None
    norm_gain: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """By the names of nodes."""

    width: int
    tables: tuple[str, ...]  # embeddings
    writers: tuple[str, ...]
    readers: Mapping[str, StreamReader]
    rotated: frozenset[str]  # values that become R x
    intermediate: frozenset[str]  # values inside a norm that have no counterpart after rotation

    @property
    def layers(self) -> frozenset[str]:
        """The layers whose weights a rotation changes."""
        return frozenset({*self.tables, *self.writers, *self.readers})


@lru_cache(maxsize=4)
def rotation_matrix(width: int) -> Tensor:
    """A random orthogonal matrix with a fixed seed: it spreads outlier channels over all channels."""
    drawn = torch.randn(width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    q, r = torch.linalg.qr(drawn)
    return (q * r.diagonal().sign()).float()


def find_residual_stream(module: GraphModule, layers: Sequence[WeightLayer]) -> ResidualStream | None:
    """The stream that starts at the first embedding; None where an op on it does not commute with a rotation."""
    search, blocking = _search(module, layers)
    return search.found() if search is not None and blocking is None and search.readers else None


def op_blocking_rotation(module: GraphModule, layers: Sequence[WeightLayer]) -> Node | None:
    """The first op on the stream that does not commute with a rotation."""
    return _search(module, layers)[1]


def _search(module: GraphModule, layers: Sequence[WeightLayer]) -> tuple[_Search | None, Node | None]:
    """The search, where there is an embedding; and the op that ended it."""
    widths = [layer.width for layer in layers if layer.kind == "embedding"]
    if not widths:
        return None, None
    search = _Search(layers, widths[0])
    return search, next((n for n in module.graph.nodes if not search.visit(n)), None)


class _Search:
    """Classifies each value that depends on the stream, in graph order: rotated, invariant, or intermediate to one."""

    def __init__(self, layers: Sequence[WeightLayer], width: int) -> None:
        self.layers, self.width, self.matrix = {layer.name: layer for layer in layers}, width, rotation_matrix(width)
        self.kinds, self.visited, self.gains = dict[Node, str](), set[Node](), dict[Node, Tensor | None]()
        self.tables, self.writers, self.readers = list[str](), list[str](), dict[str, StreamReader]()

    def found(self) -> ResidualStream:
        rotated, intermediate = (
            frozenset(n.name for n, kind in self.kinds.items() if kind == k) for k in (ROTATED, INTERMEDIATE)
        )
        ends = tuple(self.tables), tuple(self.writers), self.readers
        return ResidualStream(self.width, *ends, rotated, intermediate)

    def visit(self, node: Node) -> bool:
        """False where this op prevents the rotation."""
        self.visited.add(node)
        if self._is_table(node):
            self.tables.append(node.name)
            self.kinds[node] = ROTATED
            return True
        kinds = {self.kinds[n] for n in node.all_input_nodes if n in self.kinds}
        if not kinds - {INVARIANT}:
            self._mark_invariant(node, kinds)
            return True
        if node.op != "call_function":
            return False
        return self._visit_reader(node) if self._is_linear(node) else self._visit_op(node)

    def _is_table(self, node: Node) -> bool:
        layer = self.layers.get(node.name)
        return layer is not None and layer.kind == "embedding" and layer.width == self.width

    def _is_linear(self, node: Node) -> bool:
        return node.name in self.layers and self.layers[node.name].kind == "linear"

    def _mark_invariant(self, node: Node, kinds: set[str]) -> None:
        if kinds and node.op == "call_function" and not self._unclassified_inputs(node):
            self.kinds[node] = INVARIANT

    def _unclassified_inputs(self, node: Node) -> list[Node]:
        """Inputs that are not constant and do not depend on the stream so far."""
        return [n for n in node.all_input_nodes if n not in self.kinds and constant_of(n) is None]

    def _visit_reader(self, node: Node) -> bool:
        x: Any = node.args[0]
        if self.kinds.get(x) == ROTATED:
            self.readers[node.name] = StreamReader()
            return True
        product = self._norm_product_before(x)
        if product is None or not self._is_norm_gain(product, x):
            return False
        gain = self.gains.setdefault(product, norm_gain_of(product)[1])  # one tensor for all its readers
        self.readers[node.name] = StreamReader(product.name, gain)
        return True

    def _norm_product_before(self, x: Any) -> Node | None:
        """The nearest product with a gain, before ops that keep the order of channels."""
        while self.kinds.get(x) == INTERMEDIATE and norm_gain_of(x)[1] is None:
            x = next((n for n in x.all_input_nodes if n in self.kinds), None)
        normalized, gain = norm_gain_of(x)
        return x if gain is not None and self.kinds.get(normalized) == ROTATED else None

    def _is_norm_gain(self, product: Node, x: Node) -> bool:
        """Without the product x commutes with R, times the gain it is x again, and only linears read the product."""
        gain, ways = norm_gain_of(product)[1], ((None, None), (None, product), (self.matrix, product))
        original, without, rotated = (_evaluate(x, self.kinds, by, 1.0, skip) for by, skip in ways)
        if not _is_float_tensor(without) or without.shape[-1:] != (self.width,):
            return False
        commutes = _close(original, without * gain) and _close(without @ self.matrix.T, rotated)
        return commutes and self._only_linears_read(product)

    def _only_linears_read(self, product: Node) -> bool:
        others = [u for u in product.users if not self._is_linear(u)]
        return all(self.kinds.get(u, INTERMEDIATE) == INTERMEDIATE and self._only_linears_read(u) for u in others)

    def _visit_op(self, node: Node) -> bool:
        if not all(self._add_writer(n, node) for n in self._unclassified_inputs(node)):
            return False
        self.kinds[node] = self._classify(node)
        return True

    def _add_writer(self, node: Node, reader: Node) -> bool:
        """The value comes from a linear and has no other reader so far: the linear can give it rotated."""
        path = self._path_from_linear(node)
        other_readers = {u for n in path for u in n.users} & self.visited - {*path, reader}
        if not path or other_readers:
            return False
        self.kinds[path[0]] = ROTATED
        self.kinds |= {n: self._classify(n) for n in path[1:]}
        self.writers.append(path[0].name)
        return self.kinds[node] == ROTATED

    def _path_from_linear(self, node: Node) -> list[Node]:
        path = [node]
        while not self._is_linear(path[0]):
            read = self._unclassified_inputs(path[0])
            if len(read) != 1 or path[0].op != "call_function":
                return []
            path.insert(0, read[0])
        return path if self.layers[path[0].name].rows == self.width and has_constant_bias(path[0]) else []

    def _classify(self, node: Node) -> str:
        """The same at all probe scales, else intermediate: an op may act on large values alone."""
        found = {self._classify_at(node, scale) for scale in PROBE_SCALES}
        return found.pop() if len(found) == 1 else INTERMEDIATE

    def _classify_at(self, node: Node, scale: float) -> str:
        """Evaluate from the nearest classified values, with and without rotation, and compare."""
        try:
            original, rotated = (_evaluate(node, self.kinds, by, scale) for by in (None, self.matrix))
        except (RuntimeError, TypeError, ValueError, IndexError):  # the op does not accept random values
            return INTERMEDIATE
        if _close(original, rotated):
            return INVARIANT
        fits = _is_float_tensor(original) and original.shape[-1:] == (self.width,)
        return ROTATED if fits and _close(original @ self.matrix.T, rotated) else INTERMEDIATE


def _evaluate(
    node: Node, kinds: Mapping[Node, str], rotation: Tensor | None, scale: float, skip: Node | None = None
) -> Any:
    """The node on random stream values; `skip` is a norm product that is replaced by its input without the gain."""
    known = dict[Node, Any]()

    def value(n: Node) -> Any:
        if n not in known:
            known[n] = compute(n)
        return known[n]

    def compute(n: Node) -> Any:
        if n is skip:
            return value(norm_gain_of(n)[0])
        if (constant := constant_of(n)) is not None:
            return constant.detach()
        kind = None if n is node else kinds.get(n)
        if kind in (ROTATED, INVARIANT) and isinstance(value_of(n), Tensor):
            return _rotate(scale * _random_value(n), rotation) if kind == ROTATED else _random_value(n).abs()
        return n.target(*torch.fx.map_arg(n.args, value), **torch.fx.map_arg(n.kwargs, value))  # type: ignore[operator]

    return value(node)


def _rotate(x: Tensor, rotation: Tensor | None) -> Tensor:
    return x if rotation is None else x @ rotation.T


def _random_value(node: Node) -> Tensor:
    """Values in its shape, seeded by its name; a dynamic dimension has length two."""
    shape = [d if isinstance(d, int) else 2 for d in value_of(node).shape]
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(node.name.encode())))


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, int):
        return bool(a == b)
    return (
        _is_float_tensor(a)
        and a.numel() > 0
        and a.shape == b.shape
        and float((a - b).abs().max()) <= ROTATION_TOLERANCE * float(a.abs().max())
    )


def _is_float_tensor(x: Any) -> bool:
    """False for tuples and integers, which no norm computes."""
    return isinstance(x, Tensor) and x.is_floating_point()


def norm_gain_of(x: Any) -> tuple[Any, Tensor | None]:
    """(y, g) where x is y * g and g is a constant with one number per channel; else (x, None)."""
    if not isinstance(x, Node) or x.target is not aten.mul.Tensor or x.kwargs:
        return x, None
    for y, c in (x.args, x.args[::-1]):
        found = constant_of(c) if isinstance(c, Node) else None
        if found is not None and found.dim() == 1:
            return y, found.detach()
    return x, None
