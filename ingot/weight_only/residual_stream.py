"""What runs through a whole decoder: tables and linears add to it, norms and linears read it, nothing else sees it.

Such a stream may be turned by any orthogonal matrix R and nobody can tell: who writes gives R y, who reads takes R out
again. That a norm lets R through is not taken from its name: it is computed with and without, and compared.
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
from ingot.weight_only.scheme import Layer, has_known_bias

aten = torch.ops.aten
NEAR = 1e-4  # of the largest number: float32 through a norm keeps more
SCALES = (0.01, 1.0, 1000.0)  # of the numbers that are drawn: a clip acts on loud ones, an offset on quiet ones
SEED = 20


@dataclass(frozen=True, eq=False)
class Reader:
    """A linear that reads it; the product with the gains of a norm that is on the way, and these."""

    product: str | None = None
    gain: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Stream:
    """By the names of nodes."""

    width: int
    tables: tuple[str, ...]
    writers: tuple[str, ...]
    readers: Mapping[str, Reader]
    turned: frozenset[str]  # values that become R x
    lost: frozenset[str]  # values on the way to others that have no counterpart when it is turned

    @property
    def ends(self) -> frozenset[str]:
        """The layers at it, whose weights change."""
        return frozenset({*self.tables, *self.writers, *self.readers})


@lru_cache(maxsize=4)
def turn(width: int) -> Tensor:
    """An orthogonal matrix, the same one every time: no channel stands out behind it."""
    drawn = torch.randn(width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    q, r = torch.linalg.qr(drawn)
    return (q * r.diagonal().sign()).float()


def stream_of(module: GraphModule, layers: Sequence[Layer]) -> Stream | None:
    """From the first table on; None where something else looks at it."""
    search, end = _followed(module, layers)
    return search.found() if search is not None and end is None and search.readers else None


def looks_at_channels(module: GraphModule, layers: Sequence[Layer]) -> Node | None:
    """The first op for which the stream cannot be turned."""
    return _followed(module, layers)[1]


def _followed(module: GraphModule, layers: Sequence[Layer]) -> tuple[_Search | None, Node | None]:
    """Where there is a table; and the op at which the search ended."""
    widths = [layer.width for layer in layers if layer.kind == "embedding"]
    if not widths:
        return None, None
    search = _Search(layers, widths[0])
    return search, next((n for n in module.graph.nodes if not search.follows(n)), None)


class _Search:
    """Each value that comes from the stream is R x when that is turned, or the same, or on its way to either."""

    def __init__(self, layers: Sequence[Layer], width: int) -> None:
        self.layers, self.width, self.turn = {layer.name: layer for layer in layers}, width, turn(width)
        self.kinds, self.passed, self.gains = dict[Node, str](), set[Node](), dict[Node, Tensor | None]()
        self.tables, self.writers, self.readers = list[str](), list[str](), dict[str, Reader]()

    def found(self) -> Stream:
        by_kind = {k: frozenset(n.name for n, kind in self.kinds.items() if kind == k) for k in ("turned", "between")}
        return Stream(
            self.width, tuple(self.tables), tuple(self.writers), self.readers, by_kind["turned"], by_kind["between"]
        )

    def follows(self, node: Node) -> bool:
        """False where the stream cannot be turned for this op."""
        self.passed.add(node)
        if self._is_table(node):
            self.tables.append(node.name)
            self.kinds[node] = "turned"
            return True
        kinds = {self.kinds[n] for n in node.all_input_nodes if n in self.kinds}
        if not kinds - {"same"}:
            self._stays(node, kinds)
            return True
        if node.op != "call_function":
            return False
        return self._reads(node) if self._is_linear(node) else self._goes_on(node)

    def _is_table(self, node: Node) -> bool:
        layer = self.layers.get(node.name)
        return layer is not None and layer.kind == "embedding" and layer.width == self.width

    def _is_linear(self, node: Node) -> bool:
        return node.name in self.layers and self.layers[node.name].kind == "linear"

    def _stays(self, node: Node, kinds: set[str]) -> None:
        if kinds and node.op == "call_function" and not self._unknown(node):
            self.kinds[node] = "same"

    def _unknown(self, node: Node) -> list[Node]:
        """What it reads that has not come from the stream so far."""
        return [n for n in node.all_input_nodes if n not in self.kinds and constant_of(n) is None]

    def _reads(self, node: Node) -> bool:
        x: Any = node.args[0]
        if self.kinds.get(x) == "turned":
            self.readers[node.name] = Reader()
            return True
        product = self._product_before(x)
        if product is None or not self._is_gain(product, x):
            return False
        gain = self.gains.setdefault(product, gain_of(product)[1])  # one for all that read it
        self.readers[node.name] = Reader(product.name, gain)
        return True

    def _product_before(self, x: Any) -> Node | None:
        """The nearest with gains, behind ops that move channels nowhere."""
        while self.kinds.get(x) == "between" and gain_of(x)[1] is None:
            x = next((n for n in x.all_input_nodes if n in self.kinds), None)
        plain, gain = gain_of(x)
        return x if gain is not None and self.kinds.get(plain) == "turned" else None

    def _is_gain(self, product: Node, x: Node) -> bool:
        """Without it x would be turned, and times the gains be x; nothing but linears reads what comes of it."""
        gain, ways = gain_of(product)[1], ((None, None), (None, product), (self.turn, product))
        as_is, plain, turned = (_computed(x, self.kinds, by, 1.0, skip) for by, skip in ways)
        if not _is_float(plain) or plain.shape[-1:] != (self.width,):
            return False
        return _near(as_is, plain * gain) and _near(plain @ self.turn.T, turned) and self._private(product)

    def _private(self, product: Node) -> bool:
        after = [u for u in product.users if not self._is_linear(u)]
        return all(self.kinds.get(u, "between") == "between" and self._private(u) for u in after)

    def _goes_on(self, node: Node) -> bool:
        if not all(self._joins(n, node) for n in self._unknown(node)):
            return False
        self.kinds[node] = self._tried(node)
        return True

    def _joins(self, node: Node, by: Node) -> bool:
        """It is what a linear gives, and nobody has read that before: then it can be given turned."""
        way = self._way_from_linear(node)
        strangers = {u for n in way for u in n.users} & self.passed - {*way, by}
        if not way or strangers:
            return False
        self.kinds[way[0]] = "turned"
        self.kinds |= {n: self._tried(n) for n in way[1:]}
        self.writers.append(way[0].name)
        return self.kinds[node] == "turned"

    def _way_from_linear(self, node: Node) -> list[Node]:
        way = [node]
        while not self._is_linear(way[0]):
            read = self._unknown(way[0])
            if len(read) != 1 or way[0].op != "call_function":
                return []
            way.insert(0, read[0])
        return way if self.layers[way[0].name].rows == self.width and has_known_bias(way[0]) else []

    def _tried(self, node: Node) -> str:
        """Alike for quiet numbers and for loud ones: something may act on the latter alone."""
        found = {self._tried_at(node, scale) for scale in SCALES}
        return found.pop() if len(found) == 1 else "between"

    def _tried_at(self, node: Node, scale: float) -> str:
        """Computed from the nearest values that are known, as these are and when they are turned."""
        try:
            as_is, turned = (_computed(node, self.kinds, by, scale) for by in (None, self.turn))
        except (RuntimeError, TypeError, ValueError, IndexError):  # numbers that were drawn are nothing for it
            return "between"
        if _near(as_is, turned):
            return "same"
        fits = _is_float(as_is) and as_is.shape[-1:] == (self.width,)
        return "turned" if fits and _near(as_is @ self.turn.T, turned) else "between"


def _computed(
    node: Node, kinds: Mapping[Node, str], turned_by: Tensor | None, scale: float, skip: Node | None = None
) -> Any:
    """`skip` is passed over: what it multiplies with its gains is taken instead."""
    known = dict[Node, Any]()

    def value(n: Node) -> Any:
        if n not in known:
            known[n] = made(n)
        return known[n]

    def made(n: Node) -> Any:
        if n is skip:
            return value(gain_of(n)[0])
        if (constant := constant_of(n)) is not None:
            return constant.detach()
        kind = None if n is node else kinds.get(n)
        if kind in ("turned", "same") and isinstance(value_of(n), Tensor):
            return _turned(scale * _drawn(n), turned_by) if kind == "turned" else _drawn(n).abs()
        return n.target(*torch.fx.map_arg(n.args, value), **torch.fx.map_arg(n.kwargs, value))  # type: ignore[operator]

    return value(node)


def _turned(x: Tensor, by: Tensor | None) -> Tensor:
    return x if by is None else x @ by.T


def _drawn(node: Node) -> Tensor:
    """Some numbers of its shape, always the same; a length that varies is two."""
    shape = [d if isinstance(d, int) else 2 for d in value_of(node).shape]
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(node.name.encode())))


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, int):
        return bool(a == b)
    return (
        _is_float(a)
        and a.numel() > 0
        and a.shape == b.shape
        and float((a - b).abs().max()) <= NEAR * float(a.abs().max())
    )


def _is_float(x: Any) -> bool:
    """Several results, or codes, are not what a norm makes."""
    return isinstance(x, Tensor) and x.is_floating_point()


def gain_of(x: Any) -> tuple[Any, Tensor | None]:
    """y and g where x is y * g with a constant for each channel."""
    if not isinstance(x, Node) or x.target is not aten.mul.Tensor or x.kwargs:
        return x, None
    for y, c in (x.args, x.args[::-1]):
        found = constant_of(c) if isinstance(c, Node) else None
        if found is not None and found.dim() == 1:
            return y, found.detach()
    return x, None
