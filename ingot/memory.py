"""Memory that was freed, given back: glibc keeps it for the next allocation, and a large model has few more to come."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def give_back() -> None:
    gc.collect()
    with suppress(OSError, AttributeError):  # other libraries have no such call, and no such habit
        ctypes.CDLL("libc.so.6").malloc_trim(0)
