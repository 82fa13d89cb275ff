"""XNNPACK: skip two passes that export patterns of their own where the graph cannot match them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx.passes.infra.pass_base import PassResult

from ingot.patches.version_gate import patched


def skip_unmatched_patterns() -> AbstractContextManager[None]:
    return patched("xnnpack")


def only_with_softmax(original: Any, _session: Any) -> Any:
    return _only_if_present("_softmax", original)


def only_with_index(original: Any, _session: Any) -> Any:
    return _only_if_present("index", original)


def _only_if_present(op: str, original: Any) -> Any:
    def call(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        if any(op in str(n.target) for n in graph_module.graph.nodes if n.op == "call_function"):
            return original(self, graph_module)
        return PassResult(graph_module, False)

    return call
