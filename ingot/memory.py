"""Memory that was freed, given back: glibc keeps it for the next allocation, and a large model has few more to come."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SOME = 300_000  # objects: a graph of a large model, as one of many passes leaves it behind
LARGE, THRESHOLD = 1 << 20, -3  # bytes; glibc's number for the size from which a block is mapped on its own


def give_back() -> None:
    gc.collect()
    with suppress(OSError, AttributeError):  # other libraries have no such call, and no such habit
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def map_large_blocks() -> None:
    """Each large tensor on its own pages, which go back when it does: else glibc learns to keep them for others."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(THRESHOLD, LARGE)


@contextmanager
def unsearched() -> Iterator[None]:
    """Python looks for cycles among all objects whenever there are some more; here among new ones, and seldom."""
    often, first = gc.get_threshold(), not gc.get_freeze_count()
    gc.set_threshold(SOME, 1, 1)
    if first:
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*often)
        if first:
            gc.unfreeze()
