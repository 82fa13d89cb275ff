"""XNNPACK: two passes that trace nets of their own are skipped where no op of theirs is in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.fx.passes.infra.pass_base import PassResult


@contextmanager
def without_idle_patterns() -> Iterator[None]:
    """Two passes export nets of their own to look for, in every process, even where no op of theirs is in the graph."""
    from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
    from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import ConvertToUpsampleBilinear2d

    with (
        patch.object(ConvertToSDPAPass, "call", _only_with("_softmax", ConvertToSDPAPass.call)),
        patch.object(ConvertToUpsampleBilinear2d, "call", _only_with("index", ConvertToUpsampleBilinear2d.call)),
    ):
        yield


def _only_with(word: str, call: Any) -> Any:
    def only(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        if any(word in str(n.target) for n in graph_module.graph.nodes if n.op == "call_function"):
            return call(self, graph_module)
        return PassResult(graph_module, False)

    return only
