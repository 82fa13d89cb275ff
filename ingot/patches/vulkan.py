"""Vulkan: keep the root logger's level, log why each op is refused together with its node, read infinite numbers,
export its patterns only where the graph may match them, and once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from ingot.patches.version_gate import patched

# Under the name of a partitioner: the partition report reads the logs of all partitioners.
LOGGER = logging.getLogger("executorch.backends.vulkan.partitioner")


@dataclass(frozen=True)
class _Refusal:
    """A log message: an op that runs on the host, and why."""

    node: Any
    reason: str


@contextmanager
def vulkan_lowering() -> Iterator[None]:
    """See the groups "vulkan", "vulkan_views" and "vulkan_patterns" of the table."""
    with _root_level_kept(), patched("vulkan"), patched("vulkan_views"), patched("vulkan_patterns"):
        yield


@contextmanager
def _root_level_kept() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    with suppress(ImportError):
        import executorch.backends.vulkan.serialization.vulkan_graph_builder  # noqa: F401  sets the level to INFO
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)


def log_refusal(_original: Any, _session: Any) -> Callable[..., None]:
    def log_skip(_: Any, node: Any, reason: str) -> None:
        LOGGER.debug(_Refusal(node, f"Vulkan's partitioner: {reason}"))

    return log_skip


def only_one_added_dim(original: Any, _session: Any) -> Callable[..., int | None]:
    """The dim, if the op makes the shape of the view; -1 is the last."""

    @wraps(original)
    def find_unsqueeze_dim(self: Any, input_shape: Sequence[Any], view_shape: Sequence[Any]) -> int | None:
        dim: int | None = original(self, input_shape, view_shape)
        if dim is None:
            return None
        at = dim % len(view_shape)
        return dim if [*input_shape[:at], 1, *input_shape[at:]] == list(view_shape) else None

    return find_unsqueeze_dim


# ---- patterns ----


def noting_graph(original: Any, session: dict[str, Any]) -> Callable[..., Any]:
    """Matching takes the graph as its last argument; what exports the patterns does not see it."""

    def match(*args: Any) -> Any:
        session["graph"] = args[-1].graph
        return original(*args)

    return match


def patterns_where_needed(original: dict[str, Any], session: dict[str, Any]) -> dict[str, Any]:
    def entry(one: Any) -> Any:
        graphs = one.get_graphs_fn and (lambda: _exported_once(one.get_graphs_fn) if _may_match(session) else [])
        return type(one)(graphs, one.detector_fn, one.create_replacement_fn)

    return {name: entry(one) for name, one in original.items()}


def _may_match(session: dict[str, Any]) -> bool:
    """All patterns are rotary embeddings, which join their halves by cat."""
    return any("aten.cat" in str(n.target) for n in session["graph"].nodes if n.op == "call_function")


@cache
def _exported_once(make: Callable[[], list[GraphModule]]) -> list[GraphModule]:
    """Matching reads ops and edges only: the fake tensors of a pattern are not kept."""
    made = make()
    for node in (n for module in made for n in module.graph.nodes):
        node.meta.clear()
    return made


# ---- payloads ----


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
