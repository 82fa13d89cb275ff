"""Scale groups: disjoint sets of quantization points that share one scale, and the reason for every union."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Union-find. The sets do not depend on the order of the unions."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}
        self._links: dict[T, list[tuple[T, str]]] = {}

    def __contains__(self, item: T) -> bool:
        return item in self._parent

    def find(self, item: T) -> T:
        """The representative of the item's set."""
        parent = self._parent.setdefault(item, item)
        while parent != self._parent[parent]:
            self._parent[item] = parent = self._parent[parent]
        return parent

    def union(self, a: T, b: T, why: str = "") -> None:
        """Merge the sets of `a` and `b`. `why` is kept for the explanations of `paths_to`."""
        self._parent[self.find(a)] = self.find(b)
        self._links.setdefault(a, []).append((b, why))
        self._links.setdefault(b, []).append((a, why))

    def paths_to(self, goal: T) -> dict[T, tuple[T, str]]:
        """For each other member of the set: the next member on a shortest path to the goal, and why they are linked."""
        following: dict[T, tuple[T, str]] = {}
        queue, seen = deque([goal]), {goal}
        while queue:
            here = queue.popleft()
            for there, why in self._links.get(here, ()):
                if there not in seen:
                    seen.add(there)
                    following[there] = (here, why)
                    queue.append(there)
        return following

    def same(self, a: T, b: T) -> bool:
        """Whether both are members of one set. The question adds no member."""
        known = a in self._parent and b in self._parent
        return known and self.find(a) == self.find(b)

    def groups(self) -> Iterator[list[T]]:
        found: dict[T, list[T]] = {}
        for item in list(self._parent):
            found.setdefault(self.find(item), []).append(item)
        yield from found.values()

    def add(self, items: Iterable[T]) -> None:
        """Make each item a member, at first of a set of its own."""
        for item in items:
            self.find(item)
