"""Ranges of constants."""

from __future__ import annotations

import torch

from ingot.plan.value_ranges import value_range_of


def constant(tensor: torch.Tensor) -> torch.fx.Node:
    module = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    module.register_buffer("c", tensor)
    return module.graph.get_attr("c")


def test_a_constant_without_elements_has_a_range() -> None:
    assert value_range_of(constant(torch.empty(1, 0, 3)), None, {}) == (0.0, 0.0)  # type: ignore[arg-type]
    assert value_range_of(constant(torch.tensor([2.0, -1.0])), None, {}) == (-1.0, 2.0)  # type: ignore[arg-type]
