"""Caches by op, arguments and shapes: what is found out about one op serves every other like it, also of later models.

A model may fill one as far as it likes. Between two verbs only the newest entries are kept, since a process that casts
many models would fill its memory with shapes that never come again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

MOST_KEPT = 1000  # entries, of some kilobytes each
V = TypeVar("V")
_caches: WeakSet[ShapeCache[Any]] = WeakSet()


class ShapeCache(Generic[V]):
    """Threads may share one: in the worst case an entry is made twice."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, V] = {}
        _caches.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The entry, made where there is none."""
        try:
            return self._entries[key]
        except KeyError:
            made = self._entries[key] = make()
            return made

    def drop_oldest(self, kept: int = 0) -> None:
        for key in list(self._entries)[: max(len(self._entries) - kept, 0)]:
            self._entries.pop(key, None)


def drop_oldest_shapes() -> None:
    """In every cache of this process."""
    for cache in list(_caches):
        cache.drop_oldest(MOST_KEPT)
