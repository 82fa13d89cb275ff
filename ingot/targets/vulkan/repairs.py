"""What Vulkan's own lowering gets wrong, mended while it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def repaired() -> Iterator[None]:
    yield
