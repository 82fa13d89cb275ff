"""Rewrites that keep ops inside an Ethos-U delegate: transposed convolutions, instance norms, elementwise functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.targets.arm.fusions import clamp_limits
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


def test_only_what_clamps_fuses_into_a_linear() -> None:
    """reshape(-1) leaves a vector as it is; taken for a clamp, it was erased, and the output had another shape."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    clamps = {
        torch.ops.aten.relu.default: (), torch.ops.aten.hardtanh.default: (-1.0, 3.0), torch.ops.aten.clamp.default: (0.5,),
    }  # fmt: skip
    others = {
        torch.ops.aten.reshape.default: ([-1],), torch.ops.aten.view.default: ([-1],), torch.ops.aten.clone.default: (),
        torch.ops.aten.squeeze.dim: (1,), torch.ops.aten.neg.default: (), torch.ops.aten.abs.default: (),
        torch.ops.aten.alias.default: (), torch.ops.aten.flatten.using_ints: (),
    }  # fmt: skip
    assert all(clamp_limits(graph.call_function(op, (x, *rest))) for op, rest in clamps.items())
    assert not any(clamp_limits(graph.call_function(op, (x, *rest))) for op, rest in others.items())


class FlatLinears(nn.Module):
    """Views of all kinds between a linear and its readers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = self.first(x).ravel(), self.second(x).view(-1)
        return torch.cat([a, a * 2]), b, self.second(x).squeeze(-1).tanh(), self.first(x).flatten().relu()


@pytest.mark.parametrize("target", ["ethos-u55-128", "vgf"])
def test_views_after_a_linear_keep_their_shape(target: str) -> None:
    assert_whole(cast(FlatLinears(), need(target), [(torch.randn(1, 2, 8),) for _ in range(4)]))


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
