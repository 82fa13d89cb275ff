"""Slots that hold one scale: union-find over what ops force, then edge by edge by price."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Classes(Generic[T]):
    """Union-find whose answer does not depend on the order of unions."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def find(self, item: T) -> T:
        parent = self._parent.setdefault(item, item)
        while parent != self._parent[parent]:
            self._parent[item] = parent = self._parent[parent]
        return parent

    def union(self, a: T, b: T) -> None:
        self._parent[self.find(a)] = self.find(b)

    def same(self, a: T, b: T) -> bool:
        return self.find(a) == self.find(b)

    def groups(self) -> Iterator[list[T]]:
        found: dict[T, list[T]] = {}
        for item in list(self._parent):
            found.setdefault(self.find(item), []).append(item)
        yield from found.values()

    def add(self, items: Iterable[T]) -> None:
        for item in items:
            self.find(item)
