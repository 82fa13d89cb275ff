"""Vulkan: keep the root logger's level, and log why each op is refused together with its node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ingot.patches.version_gate import patched

# Under the name of a partitioner: the partition report reads the logs of all partitioners.
LOGGER = logging.getLogger("executorch.backends.vulkan.partitioner")


@dataclass(frozen=True)
class _Refusal:
    """A log message: an op that runs on the host, and why."""

    node: Any
    reason: str


@contextmanager
def vulkan_logging() -> Iterator[None]:
    with suppress(ImportError):
        import executorch.backends.vulkan.serialization.vulkan_graph_builder  # noqa: F401  sets the level to INFO
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.WARNING)
    try:
        with patched("vulkan"):
            yield
    finally:
        root.setLevel(level)


def log_refusal(_original: Any, _session: Any) -> Callable[..., None]:
    def log_skip(_: Any, node: Any, reason: str) -> None:
        LOGGER.debug(_Refusal(node, f"Vulkan's partitioner: {reason}"))

    return log_skip
