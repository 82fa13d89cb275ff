"""Caches by shape: as large as a model needs, small between two verbs."""

from __future__ import annotations

from itertools import count

import pytest

from ingot.core.shape_cache import ShapeCache, drop_oldest_shapes


def test_an_entry_is_made_once() -> None:
    cache, number = ShapeCache[int](), count()
    assert [cache.get(key, lambda: next(number)) for key in "abab"] == [0, 1, 0, 1]


def test_the_newest_entries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.core.shape_cache.MOST_KEPT", 3)
    cache = ShapeCache[int]()
    for key in range(8):
        cache.get(key, lambda: 0)
    assert len(cache) == 8
    drop_oldest_shapes()
    assert len(cache) == 3
    assert [cache.get(key, lambda: 1) for key in (4, 5, 6, 7)] == [1, 0, 0, 0]


def test_what_fails_is_not_kept() -> None:
    cache = ShapeCache[float]()
    with pytest.raises(ZeroDivisionError):
        cache.get("x", lambda: 1 / 0)
    assert len(cache) == 0
