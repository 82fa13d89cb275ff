"""A target without some ops: what the planner is told, and what partitioners see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Node

import ingot
from ingot.core.fx import calls
from ingot.errors import InputError
from ingot.lower.hidden_ops import hiding
from ingot.lower.partition_report import mark_values
from ingot.targets.barred import Bar, host_bars, with_bars
from ingot.targets.base import Kernels, Lowering
from ingot.targets.forwarding import ForwardingKernels, ForwardingLowering
from ingot.targets.registry import find_target

XNNPACK = find_target("xnnpack")
X = torch.randn(1, 3, 8, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu().permute(0, 2, 3, 1)


@pytest.fixture(scope="module")
def nodes() -> dict[str, Node]:
    return {n.name: n for n in calls(ingot.capture(Net().eval(), (X,)).module)}


@pytest.mark.parametrize("name", ["xnnpack", "ethos-u85-256", "vgf", "vulkan"])
def test_a_wrapped_target_has_every_fact_of_its_main_one(name: str) -> None:
    """Recovery plans with a wrapped target: a fact that is not forwarded changes the plan."""
    main = find_target(name)
    for wrapped, part, facts in (
        (ForwardingKernels(main.kernels), main.kernels, Kernels.__annotations__),
        (ForwardingLowering(main.lowering), main.lowering, Lowering.__annotations__),
    ):
        assert {f: getattr(wrapped, f) for f in facts} == {f: getattr(part, f) for f in facts}


def test_nothing_barred_is_the_target_itself() -> None:
    assert with_bars(XNNPACK, ()) is XNNPACK


def test_a_barred_op_has_no_kernel_and_its_siblings_keep_theirs(nodes: dict[str, Node]) -> None:
    kernels = with_bars(XNNPACK, [Bar("relu", "it dies")]).kernels
    assert kernels.ability(nodes["relu"]).runs == frozenset()
    assert kernels.ability(nodes["relu"]).because == "it dies"
    assert kernels.ability(nodes["conv2d"]) == XNNPACK.kernels.ability(nodes["conv2d"])
    assert XNNPACK.kernels.fuses(nodes["conv2d"], nodes["relu"])
    assert not kernels.fuses(nodes["conv2d"], nodes["relu"])
    assert kernels.requantizes(nodes["relu"])


def test_an_op_that_is_barred_in_one_precision_is_otherwise_as_before(nodes: dict[str, Node]) -> None:
    """A kernel that only moves integers still has one scale for both sides."""
    target = with_bars(XNNPACK, [Bar("permute", "float dies", frozenset({"int8"}))])
    assert target.kernels.ability(nodes["permute"]).runs == {"int8"}
    assert not target.kernels.requantizes(nodes["permute"])
    assert target.lowering is XNNPACK.lowering


def test_names_that_the_program_does_not_have_are_refused(nodes: dict[str, Node]) -> None:
    module: Any = nodes["relu"].graph.owning_module
    assert host_bars([("relu", "asked")], module) == (Bar("relu", "asked"),)
    with pytest.raises(InputError, match="host_ops names 'rleu'"):
        host_bars([("rleu", "asked")], module)


class Seeing:
    """A partitioner that notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def partition(self, exported_program: Any) -> str:
        self.seen = [str(n.target) for n in calls(exported_program.graph_module)]
        return "tagged"

    def ops_to_not_decompose(self, _: Any) -> Any:
        return [torch.ops.aten.relu.default], None


def test_a_partitioner_does_not_see_barred_ops_and_the_graph_is_as_before() -> None:
    module = ingot.capture(Net().eval(), (X,)).module
    mark_values(module)
    before = [n.target for n in module.graph.nodes]
    partitioner = Seeing()
    hidden = hiding(partitioner, {"relu"})
    assert hidden.partition(SimpleNamespace(graph_module=module)) == "tagged"
    assert ["relu" in t for t in partitioner.seen] == [False] * len(partitioner.seen)
    assert sum("barred" in t for t in partitioner.seen) == 1
    assert [n.target for n in module.graph.nodes] == before
    ops, check = hidden.ops_to_not_decompose(None)
    by_name = {n.name: n for n in module.graph.nodes}
    assert ops == [torch.ops.aten.relu.default]
    assert not check(by_name["relu"]), "the host has kernels for its parts only"
    assert check(by_name["conv2d"])
    assert partitioner.partition(SimpleNamespace(graph_module=module))
    assert any("relu" in t for t in partitioner.seen), "the partitioner itself is unchanged"
