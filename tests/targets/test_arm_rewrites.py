"""Rewrites that keep ops inside an Ethos-U delegate: transposed convolutions, instance norms, elementwise functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
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
    clamps: dict[Any, tuple[Any, ...]] = {
        torch.ops.aten.relu.default: (), torch.ops.aten.hardtanh.default: (-1.0, 3.0), torch.ops.aten.clamp.default: (0.5,),
    }  # fmt: skip
    others: dict[Any, tuple[Any, ...]] = {
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


class SharedKeys(nn.Module):
    """Four heads of queries; keys and values of one or of two."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups, self.q, self.kv, self.out = groups, nn.Linear(16, 16), nn.Linear(16, 8 * groups), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 4).transpose(1, 2)
        k, v = self.kv(x).view(b, n, self.groups, 8).transpose(1, 2).chunk(2, -1)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.groups > 1)
        z: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, n, 16))
        return z


@pytest.mark.parametrize("groups", [1, 2])
def test_attention_with_shared_keys_is_in_the_delegate(groups: int) -> None:
    assert_whole(cast(SharedKeys(groups), need("ethos-u85-256"), [(torch.randn(1, 6, 16),) for _ in range(4)]))


class VideoWindows(nn.Module):
    """Windows of frames, rows and columns, and back: permutes of eight dimensions."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes, self.a, self.b = sizes, nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (b, t, h, w, c), (p, q, r) = x.shape, self.sizes
        x = self.a(x).view(b, t // p, p, h // q, q, w // r, r, c).permute(0, 1, 3, 5, 2, 4, 6, 7)
        y = self.b(F.gelu(x.reshape(-1, p * q * r, c))).view(b, t // p, h // q, w // r, p, q, r, 4)
        z: torch.Tensor = y.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(b, t, h, w, 4)
        return z


@pytest.mark.parametrize("sizes", [(2, 3, 3), (1, 2, 6), (4, 3, 2)])
def test_windows_of_videos_are_in_the_delegate(sizes: tuple[int, ...]) -> None:
    assert_whole(cast(VideoWindows(sizes), need("ethos-u85-256"), [(torch.randn(1, 4, 6, 6, 8),) for _ in range(4)]))


class UnreadPlaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.conv(x)
        pooled = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[0]
        return pooled, x.max(1).values, x.min(-1, keepdim=True)[0]


def test_extrema_whose_places_are_not_read_are_in_the_delegate() -> None:
    assert_whole(cast(UnreadPlaces(), need("ethos-u85-256"), [(torch.randn(1, 3, 9, 9),) for _ in range(4)]))


class Everyday(nn.Module):
    """Ops that Arm's partitioner refuses, or decomposes into views that are refused where they are alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.conv(x)
        rows = x.flatten(2)
        scores = rows @ rows.mT
        return (
            scores.logsumexp(-1),
            torch.addcmul(scores, scores, scores, value=0.5),
            torch.lerp(scores, scores.mT, 0.3),
            scores.diagonal(dim1=1, dim2=2) + 1.0,
            F.cosine_similarity(x, x.flip(1) + 1, 1),
            x.unfold(2, 4, 2).sum(-1),
            F.fold(F.unfold(x, 3, padding=1), (8, 8), 3, padding=1),
            F.interpolate(rows, size=20, mode="linear"),
            F.interpolate(x, size=(5, 6), mode="bilinear", antialias=True),
            x.tanh().prod(1),
        )


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_everyday_ops_without_a_kernel_are_made_of_those_with_one(target: str) -> None:
    casting = cast(Everyday(), need(target), [(torch.randn(1, 3, 8, 8),) for _ in range(4)])
    assert_whole(casting)


class MaskedAttention(nn.Module):
    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.register_buffer("mask", mask)

    mask: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.linear(self.norm(x)).view(1, 9, 2, 8).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, self.mask, scale=0.3)
        z: torch.Tensor = self.norm(y.transpose(1, 2).reshape(1, 9, 16))
        return z


def a_mask(kind: str) -> torch.Tensor:
    mask = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0)) > (-1.0 if kind == "all" else 0.3)
    mask[0, 0, 2] = kind != "a row without keys"
    return mask


@pytest.mark.parametrize("kind", ["all", "some"])
def test_attention_with_a_constant_mask_is_in_the_delegate(kind: str) -> None:
    batches: Batches = [(torch.randn(1, 9, 16),) for _ in range(4)]
    assert_whole(cast(MaskedAttention(a_mask(kind)), need("ethos-u85-256"), batches))


def test_a_pass_that_changes_values_costs_its_op_only() -> None:
    """Arm's attention gives other values for a row without keys: no op of the net was decomposed, and all ran on the host."""
    batches: Batches = [(torch.randn(1, 9, 16),) for _ in range(4)]
    casting = cast(MaskedAttention(a_mask("a row without keys")), need("ethos-u85-256"), batches)
    assert casting.check.passed
    assert any("softmax" in op.op for op in casting.host_ops)
    assert not any("norm" in op.op for op in casting.host_ops)


class Tokens(nn.Module):
    """Positions are counted among the tokens that are no padding, as RoBERTa does."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(40, 16)
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places((tokens != 1).int().cumsum(1).long())
        y: torch.Tensor = self.linear(self.norm(x))
        return y


def test_embeddings_are_in_the_delegate() -> None:
    """An index that a rewrite reshaped has no statistics and needs none; a computed one is cut to 32 bits."""
    casting = cast(Tokens(), need("ethos-u85-256"), [(torch.randint(0, 50, (1, 32)),) for _ in range(4)])
    assert casting.check.passed
    assert not any("index_select" in op.op or "quantize" in op.op for op in casting.host_ops)


class WithIndices(nn.Module):
    """An op with a constant index that stays on the host."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op
        self.register_buffer("index", torch.tensor([[2, 0, 1, 1]]).expand(3, 4).contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(torch.relu(x) + 1.0, self.index)


INDEXED = {
    "scatter_add": lambda x, i: x.scatter_add(1, i, x.flip(1)),
    "scatter": lambda x, i: x.scatter(1, i[:, :3], x[:, :3] * 0.5),
    "gather": lambda x, i: x.gather(1, i),
    "index_add": lambda x, i: x.index_add(1, i[0], x),
}


@pytest.mark.recovers  # one of Arm's passes refuses index_add on vgf
@pytest.mark.parametrize("op", INDEXED)
@pytest.mark.parametrize("target", ["vgf", "ethos-u55-128"])
def test_host_ops_have_indices_of_64_bits(target: str, op: str) -> None:
    """Arm's passes make constants of 32 bits of them, which the runtime's kernels refuse."""
    batches = [(torch.randn(3, 4, generator=torch.Generator().manual_seed(i)),) for i in range(6)]
    casting = ingot.cast(WithIndices(INDEXED[op]).eval(), batches[0], target=need(target), calibration=batches)
    assert casting.check.passed
