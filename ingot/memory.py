"""Memory that was freed, given back: glibc keeps it for the next allocation, and a large model has few more to come."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LARGE, THRESHOLD = 4 << 20, -3  # bytes; glibc's number for the size from which a block is mapped on its own


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
    """Python looks for cycles among all objects as often as there are some more; a graph has many, and they stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
