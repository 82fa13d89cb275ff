"""Vulkan's rotary patterns are exported where a graph may match them, once, and the file is the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.patches import vulkan
from tests.support.requirements import need

PATCHED = vulkan.patched
HALVES, PAIRS = "HfRotaryEmbeddingPattern", "RotaryEmbeddingPattern"  # of Hugging Face, of ExecuTorch's llama


class Mixed(nn.Module):
    """No rotary embedding, with or without the op that all of them have."""

    def __init__(self, joins: bool) -> None:
        super().__init__()
        self.joins, self.q, self.k = joins, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = self.q(x), self.k(x)
        return torch.cat([q, k], -1) if self.joins else q * k


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The patterns that are exported, each time."""
    need("vulkan")
    from executorch.backends.vulkan.patterns import rope, rope_hf

    made: list[str] = []
    for module in (rope, rope_hf):
        monkeypatch.setattr(module, "export", _counting(module.export, made))
    vulkan._exported_once.cache_clear()
    yield made
    vulkan._exported_once.cache_clear()


def _counting(export: Any, made: list[str]) -> Any:
    def counted(net: nn.Module, *args: Any, **options: Any) -> Any:
        made.append(type(net).__name__)
        return export(net, *args, **options)

    return counted


def without_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "patched", lambda g: contextlib.nullcontext() if g == "vulkan_patterns" else PATCHED(g))


@pytest.mark.parametrize(("kind", "rotated"), [(PAIRS, 4), (HALVES, 8), (HALVES, 6)])
def test_rotary_embeddings_are_fused_as_without(kind: str, rotated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need("vulkan")
    fast = lower_rotary(kind, rotated), lower_rotary(kind, rotated)  # the second with the known patterns
    without_the_patch(monkeypatch)
    assert fast == (lower_rotary(kind, rotated),) * 2
    assert b"apply_rotary_emb" in fast[0]


def lower_rotary(kind: str, rotated: int) -> bytes:
    """By ExecuTorch alone: the canonical form of a captured program matches no pattern."""
    import executorch.backends.vulkan.patterns as patterns
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    q, k = torch.zeros(1, 3, 4, 8), torch.zeros(1, 3, 2, 8)
    exported = torch.export.export(getattr(patterns, kind)(), (q, k, torch.zeros(3, rotated), torch.zeros(3, rotated)))
    with vulkan.vulkan_lowering():
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge_transform_and_lower(exported, partitioner=[VulkanPartitioner({})], compile_config=config)
        return bytes(edge.to_executorch().buffer)


@pytest.mark.parametrize("joins", [True, False])
def test_the_same_file_with_and_without(joins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = cast(joins)
    without_the_patch(monkeypatch)
    assert cast(joins) == fast


def cast(joins: bool) -> bytes:
    torch.manual_seed(0)
    net, given = Mixed(joins).eval(), (torch.randn(3, 8),)
    return ingot.cast(net, given, target=need("vulkan"), calibration=[given], recipe={"quantize": False}).pte


def test_patterns_are_exported_once_and_only_for_a_graph_with_cat(exports: list[str]) -> None:
    cast(joins=False)
    assert exports == []
    cast(joins=True)
    cast(joins=True)
    assert exports == [PAIRS, HALVES, HALVES]


def test_every_pattern_has_the_op_that_is_looked_for() -> None:
    need("vulkan")
    from executorch.backends.vulkan.patterns import all_fusable_graph_patterns

    patterns = all_fusable_graph_patterns()
    assert patterns
    assert all(vulkan._may_match({"graph": p.graph}) for p in patterns)
