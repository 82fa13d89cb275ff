"""A view becomes an unsqueeze only where the unsqueeze makes its shape."""

from __future__ import annotations

import itertools
from math import prod

import torch
from torch import nn

import ingot
from ingot.patches.version_gate import patched
from tests.support.requirements import need


class Rows(nn.Module):
    """Rows that are written by a matmul, then viewed from (3, 3, 1) to (1, 3, 1, 3)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().index_copy(3, torch.tensor([1, 2]), 2 * x[..., 1:])


def test_a_view_that_moves_a_dim_of_size_one_keeps_its_shape() -> None:
    need("vulkan")
    x = torch.randn(1, 3, 1, 3)
    casting = ingot.cast(Rows().eval(), (x,), target="vulkan", calibration=[(x,)], recipe={"quantize": False})
    assert casting.check is not None
    assert casting.check.passed


def test_every_unsqueeze_that_is_found_makes_the_shape_of_the_view() -> None:
    need("vulkan")
    from executorch.backends.transforms.view_copy_to_squeeze_unsqueeze import ViewCopyToSqueezeUnsqueezePass

    shapes = [s for n in range(1, 5) for s in itertools.product((1, 2, 3), repeat=n)]
    pairs = [(a, b) for a in shapes for b in shapes if len(b) == len(a) + 1 and prod(a) == prod(b)]
    with patched("vulkan_views"):
        found = {(a, b): ViewCopyToSqueezeUnsqueezePass().find_unsqueeze_dim(list(a), list(b)) for a, b in pairs}
    for (before, after), dim in found.items():
        possible = any(torch.empty(before).unsqueeze(d).shape == after for d in range(len(after)))
        assert (dim is not None) == possible
        assert dim is None or torch.empty(before).unsqueeze(dim).shape == after
