"""Vulkan's lowering sets the root logger to INFO and tells it every op."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    import executorch.backends.vulkan.serialization.vulkan_graph_builder  # noqa: F401  sets the level when imported

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
