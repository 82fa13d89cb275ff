"""Delegates are lowered in the order of the graph, whatever the hash seed of the process."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from ingot.targets.arm.lowering import _ordered

TAGS = ("tag2", "tag0", "tag10", "branch")


def tagged_graph() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for tag in ("tag2", None, "tag0", "tag2", "tag10"):
        node = graph.call_function(torch.relu, (node,))
        node.meta |= {"delegation_tag": tag} if tag else {}
    graph.output(node)
    return graph


@pytest.mark.parametrize("order", list(itertools.permutations(TAGS)))
def test_tags_follow_the_graph_and_tags_of_branches_come_last(order: tuple[str, ...]) -> None:
    result = SimpleNamespace(partition_tags=dict.fromkeys(order))
    assert _ordered(result, SimpleNamespace(graph=tagged_graph())) == ["tag2", "tag0", "tag10", "branch"]
