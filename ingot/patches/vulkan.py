"""Vulkan's lowering sets the root logger to INFO and tells it every op; why it leaves one belongs to that op."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

SAID = logging.getLogger("executorch.backends.vulkan.partitioner")  # named as others': they are listened to


@dataclass(frozen=True)
class Left:
    """An op that stays on the host."""

    node: Any
    reason: str


@contextmanager
def quiet() -> Iterator[None]:
    import executorch.backends.vulkan.serialization.vulkan_graph_builder  # noqa: F401  sets the level when imported
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanSupportedOperators

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.WARNING)
    try:
        with patch.object(VulkanSupportedOperators, "log_skip", _tell):
            yield
    finally:
        root.setLevel(level)


def _tell(_: Any, node: Any, reason: str) -> None:
    SAID.debug(Left(node, f"Vulkan's partitioner: {reason}"))
