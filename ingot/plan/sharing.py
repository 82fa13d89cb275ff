"""Sharing is a decision with a price: edge by edge, does the reader take the producer's scale, or requantize?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch.fx import Node

from ingot.plan.qparams import hull
from ingot.plan.work import Place, Work, activations, range_of
from ingot.semantics import operands

# Sharing a scale with a wider class costs the narrower value bits; below this nobody can tell.
NEGLIGIBLE_BITS = 0.25


def share(work: Work) -> None:
    """Edge by edge, the cheapest first: does the reader take the producer's scale, or requantize?"""
    hulls = _Hulls(work)
    edges = [(hulls.lost(p, r), p, r) for p, r in _edges(work)]
    for _, producer, reader in sorted(edges, key=lambda e: e[0]):
        if work.classes.same(producer, reader):
            continue
        lost = hulls.lost(producer, reader)
        if lost <= NEGLIGIBLE_BITS or _nobody_gains(producer, reader, work):
            hulls.union(producer, reader)
        else:
            name = producer[0].name
            work.because[reader] = (f"requantized: sharing would cost {name} {lost:.1f} bits for its other readers",)


class _Hulls:
    """The range of each class as it grows, and the narrowest range that any part of it had alone."""

    def __init__(self, work: Work) -> None:
        self.work = work
        groups = {work.classes.find(g[0]): g for g in work.classes.groups()}
        self.hull = {root: _with_zero(hull(range_of(m, work) for m in members)) for root, members in groups.items()}
        self.least = {root: high - low for root, (low, high) in self.hull.items()}

    def lost(self, a: Place, b: Place) -> float:
        """Bits that the narrowest part of either class loses if both share one scale."""
        x, y = self.work.classes.find(a), self.work.classes.find(b)
        low, high = hull([self.hull[x], self.hull[y]])
        least = min(self.least[x], self.least[y])
        return math.log2((high - low) / least) if least > 0 else 0.0

    def union(self, a: Place, b: Place) -> None:
        x, y = self.work.classes.find(a), self.work.classes.find(b)
        joined, least = hull([self.hull[x], self.hull[y]]), min(self.least[x], self.least[y])
        self.work.classes.union(a, b)
        root = self.work.classes.find(a)
        self.hull[root], self.least[root] = joined, least


def _with_zero(span: tuple[float, float]) -> tuple[float, float]:
    return min(span[0], 0.0), max(span[1], 0.0)


def _nobody_gains(producer: Place, reader: Place, work: Work) -> bool:
    """A free reader takes what it is given; a bound one shares if no one else would see the finer scale."""
    return not work.facts.carried.get(reader[0]) or _only_reader(producer[0], reader, work)


def _edges(work: Work) -> Iterator[tuple[Place, Place]]:
    for node in work.facts.integer:
        for i in activations(node, work):
            producer = operands(node)[i]
            if producer in work.facts.integer:
                yield (producer, None), (node, i)


def _only_reader(producer: Node, reader: Place, work: Work) -> bool:
    """Every reader of the value is in the reader's class."""
    places = [(u, i) for u in producer.users for i, n in enumerate(operands(u)) if n is producer]
    return all(u in work.facts.integer and work.classes.same((u, i), reader) for u, i in places)
