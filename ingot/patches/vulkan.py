"""Vulkan: keep the root logger's level, log why each op is refused together with its node, read infinite numbers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
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


@contextmanager
def vulkan_payloads() -> Iterator[None]:
    with patched("vulkan_payloads"):
        yield


def with_json_numbers(original: Any, _session: Any) -> Callable[..., None]:
    def decompile(output_dir: str, schema_path: str, bin_path: str, *options: Any) -> None:
        original(output_dir, schema_path, bin_path, *options)
        made = Path(bin_path).with_suffix(".json")
        made.write_text(_NOT_FINITE.sub(lambda m: _PYTHON[m[0]], made.read_text()))

    return decompile


_NOT_FINITE = re.compile(r"(?<=[\s:,\[])(inf|nan|-inf|-nan)(?=[\s,\]}])")
_PYTHON = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "-nan": "NaN"}
