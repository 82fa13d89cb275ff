"""Slots that hold one scale: union-find over what ops force, then edge by edge by price."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Union-find whose answer does not depend on the order of unions."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}
        self._links: dict[T, list[tuple[T, str]]] = {}

    def __contains__(self, item: T) -> bool:
        return item in self._parent

    def find(self, item: T) -> T:
        parent = self._parent.setdefault(item, item)
        while parent != self._parent[parent]:
            self._parent[item] = parent = self._parent[parent]
        return parent

    def union(self, a: T, b: T, why: str = "") -> None:
        """`why` is kept, so that a path through the class can be told."""
        self._parent[self.find(a)] = self.find(b)
        self._links.setdefault(a, []).append((b, why))
        self._links.setdefault(b, []).append((a, why))

    def ways(self, start: T) -> dict[T, tuple[T, str]]:
        """For every member of the class of `start`: the next member on the shortest way there, and why they are one."""
        toward: dict[T, tuple[T, str]] = {}
        waiting, seen = deque([start]), {start}
        while waiting:
            here = waiting.popleft()
            for there, why in self._links.get(here, ()):
                if there not in seen:
                    seen.add(there)
                    toward[there] = (here, why)
                    waiting.append(there)
        return toward

    def same(self, a: T, b: T) -> bool:
        known = a in self._parent and b in self._parent  # asking makes nobody a member
        return known and self.find(a) == self.find(b)

    def groups(self) -> Iterator[list[T]]:
        found: dict[T, list[T]] = {}
        for item in list(self._parent):
            found.setdefault(self.find(item), []).append(item)
        yield from found.values()

    def add(self, items: Iterable[T]) -> None:
        for item in items:
            self.find(item)
