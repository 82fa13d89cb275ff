"""Rewrites that keep ops inside an Ethos-U delegate: transposed convolutions, instance norms, elementwise functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.arm import Batches, assert_whole, cast
from tests.support.requirements import need

TRANSPOSED: dict[str, nn.Module] = {
    "one dimension": nn.ConvTranspose1d(8, 6, 8, 4, 2),
    "stride 3": nn.ConvTranspose2d(8, 6, 3, 3),
    "stride 8": nn.ConvTranspose2d(8, 4, 16, 8, 4),
    "depthwise": nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=8),
    "groups and output padding": nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, groups=2),
    "dilation": nn.ConvTranspose2d(8, 6, 3, 1, 2, dilation=2),
    "one row": nn.ConvTranspose2d(8, 6, (1, 4), (1, 2)),
}


@pytest.mark.parametrize("kind", TRANSPOSED)
def test_a_transposed_convolution_that_arm_refuses_is_a_convolution(kind: str) -> None:
    torch.manual_seed(0)
    layer = TRANSPOSED[kind]
    flat = isinstance(layer, nn.ConvTranspose1d)
    before: nn.Module = (nn.Conv1d if flat else nn.Conv2d)(3, 8, 3, padding=1)
    batches: Batches = [(torch.randn(1, 3, *[9] * (1 if flat else 2)),) for _ in range(6)]
    casting = cast(nn.Sequential(before, nn.ReLU(), layer, nn.ReLU()), need("ethos-u55-128"), batches)
    assert_whole(casting)
    assert any("conv-transpose-by-phases" in r for r in casting.plan.rewrites)


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norms_are_in_the_delegate(affine: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=affine), nn.SiLU())
    assert_whole(cast(net, need("ethos-u55-128"), [(torch.randn(1, 3, 9, 9),) for _ in range(6)]))


class Parts(nn.Module):
    """Ops that lowering takes apart, distances, and a resize that is no ratio of small numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.conv(x)
        tokens = F.rms_norm(x.flatten(2).mT, (8,)) + x.std((2, 3)).unsqueeze(1)
        return tokens, torch.cdist(tokens[:, :5], tokens[:, 5:9]), F.interpolate(x, size=(9, 11), mode="bilinear")


def test_ops_that_lowering_takes_apart_are_planned_by_their_parts() -> None:
    assert_whole(cast(Parts(), need("ethos-u55-128"), [(torch.randn(1, 3, 9, 9),) for _ in range(6)]))


class Elementwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = self.conv(x).chunk(4, 1)
        return torch.cat(
            [F.softplus(a), F.mish(b), F.logsigmoid(c), F.softshrink(d), (d.abs() + 1).log2(), d.exp2()], 1
        )


def test_elementwise_functions_without_a_table_are_made_of_those_with_one() -> None:
    assert_whole(cast(Elementwise(), need("ethos-u55-128"), [(torch.randn(1, 3, 9, 9),) for _ in range(6)]))
