"""Each decomposition computes what torch's op computes, for random arguments of every kind the op takes."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.rewrite import (
    activations,
    adaptive_pool,
    avg_pool_factors,
    bilinear,
    bilinear_resize,
    bucketize,
    conv3d,
    conv_transpose1d,
    conv_transpose3d,
    conv_transpose_phases,
    cumulative_sum,
    distances,
    embedding_bag,
    extrema,
    grid_sample,
    group_norm,
    instance_norm,
    logarithms,
    order_statistics,
    pool1d,
    pool3d,
    pool_indices,
    powers,
    prelu,
    products,
    resample,
    round_decimals,
    rounding,
    rrelu,
    scans,
    trigonometry,
    unbatched,
    variance,
    windows,
)
from ingot.rewrite.decomposition import Declined
from ingot.targets.arm import elementwise, reductions

aten = torch.ops.aten
MODULES = (
    conv3d, conv_transpose3d, conv_transpose_phases, adaptive_pool, pool1d, pool3d, pool_indices, order_statistics,
    round_decimals, prelu, embedding_bag, scans, bucketize, unbatched, resample, bilinear, bilinear_resize, rrelu,
    avg_pool_factors, instance_norm, group_norm, extrema, distances, cumulative_sum, powers, windows, variance,
    activations, rounding, trigonometry, logarithms, products, grid_sample, conv_transpose1d, elementwise,
    reductions,
)  # fmt: skip


def distinct(draw: random.Random, *shape: int) -> torch.Tensor:
    """No two elements are equal: positions of maxima and medians are well defined."""
    many = torch.Size(shape).numel()
    return (torch.randperm(many, generator=torch.Generator().manual_seed(draw.randrange(1 << 30))) - many / 3).reshape(
        shape
    ) / 8


def noise(draw: random.Random, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))


def each(draw: random.Random, rank: int, low: int, high: int) -> list[int]:
    """One number for all dimensions, or one for each."""
    return [draw.randint(low, high) for _ in range(draw.choice((1, rank)))]


def a_conv(draw: random.Random, rank: int, batched: float = 0.8) -> Any:
    groups, dilation = draw.choice((1, 1, 2, 3)), each(draw, rank, 1, 2)
    inner, outer = groups * draw.randint(1, 2), groups * draw.randint(1, 2)
    kernel = [draw.randint(1, 3) for _ in range(rank)]
    x = noise(draw, *a_batch(draw, batched), inner, *(draw.randint(5, 7) for _ in range(rank)))
    weight, bias = noise(draw, outer, inner // groups, *kernel), draw.choice((None, noise(draw, outer)))
    return (x, weight, bias, each(draw, rank, 1, 3), each(draw, rank, 0, 2), dilation, groups), {}


def a_conv_transpose(draw: random.Random, rank: int, batched: float = 0.8) -> Any:
    groups, dilation, stride = draw.choice((1, 1, 2, 3)), each(draw, rank, 1, 2), each(draw, rank, 1, 3)
    inner, outer = groups * draw.randint(1, 2), groups * draw.randint(1, 2)
    kernel = [draw.randint(1, 3) for _ in range(rank)]
    x = noise(draw, *a_batch(draw, batched), inner, *(draw.randint(3, 5) for _ in range(rank)))
    weight, bias = noise(draw, inner, outer // groups, *kernel), draw.choice((None, noise(draw, outer)))
    most = max(min(stride), min(dilation)) - 1
    return (x, weight, bias, stride, each(draw, rank, 0, 1), each(draw, rank, 0, most), groups, dilation), {}


def a_batch(draw: random.Random, batched: float) -> list[int]:
    return [draw.randint(1, 2)] if draw.random() < batched else []


def a_max_pool(draw: random.Random, rank: int, batched: float = 0.7) -> Any:
    kernel = each(draw, rank, 1, 3)
    lead = [*a_batch(draw, batched), draw.randint(1, 2)]
    padding = [draw.randint(0, min(kernel) // 2)]
    x = distinct(draw, *lead, *(draw.randint(5, 8) for _ in range(rank)))
    return (
        x,
        kernel,
        draw.choice(([], each(draw, rank, 1, 3))),
        padding,
        each(draw, rank, 1, 2),
        draw.random() < 0.5,
    ), {}


def an_avg_pool(draw: random.Random, rank: int, batched: float = 0.7) -> Any:
    (x, kernel, stride, padding, _, ceil), _ = a_max_pool(draw, rank, batched)
    divisor = [draw.choice((None, 1, 5))] if rank > 1 else []
    return (x, kernel, stride, padding, ceil, draw.random() < 0.5, *divisor), {}


def an_adaptive_pool(draw: random.Random, rank: int) -> Any:
    lead = [draw.randint(1, 2) for _ in range(draw.choice((1, 2)))]
    space = [draw.randint(1, 9) for _ in range(rank)]
    return (distinct(draw, *lead, *space), [draw.randint(1, n + 1) for n in space]), {}


def a_value(draw: random.Random, least: int = 0) -> torch.Tensor:
    return distinct(draw, *(draw.randint(1, 6) for _ in range(draw.randint(least, 4))))


def along_a_dim(draw: random.Random) -> Any:
    x = a_value(draw)
    return x, draw.randint(-max(x.dim(), 1), max(x.dim(), 1) - 1)


def a_kth_value(draw: random.Random) -> Any:
    x, dim = along_a_dim(draw)
    return (x, draw.randint(1, x.shape[dim] if x.dim() else 1), dim, draw.random() < 0.5), {}


def a_sort(draw: random.Random) -> Any:
    x = a_value(draw, 1)
    return (x, draw.randint(-x.dim(), x.dim() - 1), draw.random() < 0.5), {}


def a_stable_sort(draw: random.Random) -> Any:
    (x, dim, down), _ = a_sort(draw)
    return (x,), {"stable": draw.choice((True, False, None)), "dim": dim, "descending": down}


def a_prelu(draw: random.Random) -> Any:
    x = a_value(draw)
    channels = x.shape[1] if x.dim() > 1 else 1
    return (x, noise(draw, draw.choice((1, channels)))), {}


def a_bucketize(draw: random.Random) -> Any:
    boundaries, x = torch.tensor(sorted(draw.randint(-3, 3) for _ in range(draw.randint(1, 5)))) / 2.0, a_value(draw)
    return (x, boundaries), {"right": draw.random() < 0.5, "out_int32": draw.random() < 0.5}


def a_bilinear(draw: random.Random) -> Any:
    lead, n, m, out = [draw.randint(1, 3) for _ in range(draw.randint(0, 2))], *(draw.randint(1, 4) for _ in range(3))
    bias = draw.choice((None, noise(draw, out)))
    return (noise(draw, *lead, n), noise(draw, *lead, m), noise(draw, out, n, m), bias), {}


def a_resampling(draw: random.Random, rank: int) -> Any:
    x = noise(draw, draw.randint(1, 2), draw.randint(1, 2), *(draw.randint(1, 6) for _ in range(rank)))
    size, scale = [draw.randint(1, 9) for _ in range(rank)], [draw.choice((0.7, 1.0, 1.5, 2.0)) for _ in range(rank)]
    return (x, *((size, draw.random() < 0.5, None) if draw.random() < 0.5 else (None, draw.random() < 0.5, scale))), {}


def a_smooth_resampling(draw: random.Random) -> Any:
    """Wider than one: torch's own kernels with antialias are wrong for that width."""
    x = noise(draw, draw.randint(1, 2), draw.randint(1, 2), draw.randint(2, 6), draw.randint(2, 6))
    return (x, [draw.randint(2, 9), draw.randint(2, 9)], draw.random() < 0.5, None), {}


def a_reduction(draw: random.Random) -> Any:
    x = a_value(draw, 1)
    return (x, draw.sample(range(-x.dim(), 0), draw.randint(0, x.dim())), draw.random() < 0.5), {}


def a_variance(draw: random.Random) -> Any:
    x = noise(draw, *(draw.randint(2, 5) for _ in range(draw.randint(1, 4))))
    dims = draw.sample(range(-x.dim(), 0), draw.randint(0, x.dim())) or None
    return (x, dims), {"correction": draw.choice((None, 0, 1)), "keepdim": draw.random() < 0.5}


def an_unbiased_variance(draw: random.Random) -> Any:
    (x, dims), _ = a_variance(draw)
    return (x, dims, draw.random() < 0.5, draw.random() < 0.5), {}


def a_sampler(draw: random.Random) -> Any:
    """Points inside and outside of the image."""
    n, size = draw.randint(1, 3), [draw.randint(1, 6) for _ in range(2)]
    x, grid = noise(draw, n, draw.randint(1, 3), *size), noise(draw, n, *(draw.randint(1, 4) for _ in range(2)), 2)
    return (x, grid * draw.choice((0.5, 1, 4)), draw.randint(0, 1), draw.randint(0, 2), draw.random() < 0.5), {}


def a_group_norm(draw: random.Random) -> Any:
    groups = draw.randint(1, 3)
    channels = groups * draw.randint(1, 3)
    x = noise(draw, 2, channels, *(draw.randint(2, 4) for _ in range(draw.randint(1, 3))))
    affine = [draw.choice((None, noise(draw, channels))) for _ in range(2)]
    return (x, groups, *affine, draw.choice((1e-5, 0.1)), False), {}


def a_resize(draw: random.Random) -> Any:
    """To a size, or by factors that need not be the ratio of the sizes."""
    x, align = noise(draw, 1, 2, draw.randint(1, 9), draw.randint(1, 9)), draw.random() < 0.5
    if draw.random() < 0.5:
        return (x, [draw.randint(1, 20), draw.randint(1, 20)], align, None), {}
    return (x, None, align, [draw.uniform(1, 3), draw.uniform(1, 3)]), {}


def a_distance(draw: random.Random, *modes: int | None) -> Any:
    """Up to 40 rows: torch goes by products from 26 on."""
    batch, width = draw.choice(((), (2,), (3, 1))), draw.randint(1, 6)
    x, y = (noise(draw, *batch, draw.randint(1, 40), width) for _ in range(2))
    return (x, y, draw.choice((2.0, 2.0, 1.0, 3.0, float("inf"))), draw.choice(modes)), {}


def an_instance_norm(draw: random.Random) -> Any:
    (x, _, weight, bias, eps, _), _ = a_group_norm(draw)
    return (x, weight, bias if weight is not None else None, None, None, True, 0.1, eps, False), {}


def a_power(draw: random.Random) -> Any:
    """Whole powers of any number, others of positive ones."""
    if draw.random() < 0.5:
        return (noise(draw, 3, 4), draw.choice((0, 1, 3, 4, 7, 2.0, -1, -2, 18))), {}
    return (noise(draw, 3, 4).abs() + 0.1, draw.choice((0.5, -0.5, 1.5, 2.5, 0.3, -1.7, 20))), {}


def an_unfold(draw: random.Random) -> Any:
    x, dim = along_a_dim(draw)
    size = draw.randint(1, x.shape[dim] if x.dim() else 1)
    return (x, dim, size, draw.randint(1, 3)), {}


def patches(draw: random.Random) -> dict[str, list[int]]:
    kernel = [draw.randint(1, 3) for _ in range(2)]
    return {
        "kernel": kernel, "dilation": [draw.randint(1, 2) for _ in kernel], "padding": [draw.randint(0, 1) for _ in kernel],
        "stride": [draw.randint(1, 3) for _ in kernel],
    }  # fmt: skip


def an_im2col(draw: random.Random) -> Any:
    x = noise(draw, 2, draw.randint(1, 3), draw.randint(5, 8), draw.randint(5, 8))
    return (x, *patches(draw).values()), {}


def a_col2im(draw: random.Random) -> Any:
    given, size = patches(draw), [draw.randint(5, 8) for _ in range(2)]
    image = torch.zeros(2, draw.randint(1, 3), *size)
    columns = aten.im2col(image, *given.values())
    return (noise(draw, *columns.shape), size, *given.values()), {}


def an_embedding_bag(draw: random.Random) -> Any:
    rows, many, mode = draw.randint(2, 9), draw.randint(1, 8), draw.randint(0, 2)
    weight, indices = (
        distinct(draw, rows, draw.randint(1, 4)),
        torch.tensor([draw.randrange(rows) for _ in range(many)]),
    )
    offsets = sorted(draw.randint(0, many) for _ in range(draw.randint(0, 3)))
    last = draw.random() < 0.5
    weights = draw.choice((None, noise(draw, many))) if mode == 0 else None
    ends = torch.tensor([0, *offsets, *([draw.choice((many, draw.randint(max([0, *offsets]), many)))] if last else [])])
    padding = draw.choice((-1, draw.randrange(rows)))
    return (weight, indices, ends, False, mode, False, weights, last, padding), {}


def halves(draw: random.Random) -> Any:
    """Whole numbers, halves and others: of either sign."""
    return ((distinct(draw, 5, 4) * draw.choice((1, 4, 1.7)),), {})


def a_number(draw: random.Random) -> Any:
    return ((noise(draw, 3, 4) * draw.choice((1e-3, 1, 4)),), {})


def inside(draw: random.Random, low: float, high: float) -> Any:
    return ((noise(draw, 3, 4).sigmoid() * (high - low) + low,), {})


def a_mode(draw: random.Random) -> dict[str, str]:
    return {"rounding_mode": draw.choice(("floor", "trunc"))}


ON_ALL_NUMBERS = (
    aten.atan.default, aten.tan.default, aten.cosh.default, aten.sinh.default, aten.asinh.default, aten.expm1.default,
    aten.exp2.default, aten.special_exp2.default, aten.erfc.default, aten.mish.default, aten.log_sigmoid.default,
    aten.celu.default, aten.selu.default, aten.sinc.default, aten.hardshrink.default, aten.softshrink.default,
    aten.softplus.default,
)  # fmt: skip
ON_HALVES = (
    aten.round.default, aten.sign.default, aten.sgn.default, aten.trunc.default, aten.fix.default, aten.frac.default,
)  # fmt: skip
BY_A_NUMBER = (aten.remainder.Scalar, aten.fmod.Scalar)
BY_A_TENSOR = (aten.remainder.Tensor, aten.fmod.Tensor, aten.floor_divide.default)
DRAW: dict[Any, Any] = {
    aten.conv3d.default: lambda draw: a_conv(draw, 3),
    aten.conv_transpose3d.input: lambda draw: a_conv_transpose(draw, 3),
    aten.conv1d.default: lambda draw: a_conv(draw, 1, 0.2),
    aten.conv2d.default: lambda draw: a_conv(draw, 2, 0.2),
    aten.conv_transpose1d.default: lambda draw: a_conv_transpose(draw, 1, 0.2),
    aten.conv_transpose2d.input: lambda draw: a_conv_transpose(draw, 2, 0.2),
    aten.max_pool1d.default: lambda draw: a_max_pool(draw, 1),
    aten.linear.default: lambda draw: ((noise(draw, 5), noise(draw, 4, 5), *draw.choice(((), (noise(draw, 4),)))), {}),
    aten.avg_pool1d.default: lambda draw: an_avg_pool(draw, 1),
    aten.max_pool2d.default: lambda draw: a_max_pool(draw, 2, 0.2),
    aten.avg_pool2d.default: lambda draw: an_avg_pool(draw, 2, 0.2),
    aten.cumprod.default: lambda draw: (along_a_dim(draw), {}),
    aten.cummax.default: lambda draw: (along_a_dim(draw), {}),
    aten.cummin.default: lambda draw: (along_a_dim(draw), {}),
    aten.bucketize.Tensor: a_bucketize,
    aten.argsort.default: a_sort,
    aten.rrelu.default: lambda draw: ((a_value(draw), draw.random() / 2, 0.5), {}),
    aten.bilinear.default: a_bilinear,
    aten.upsample_linear1d.vec: lambda draw: a_resampling(draw, 1),
    aten.upsample_bicubic2d.vec: lambda draw: a_resampling(draw, 2),
    aten._upsample_bilinear2d_aa.vec: a_smooth_resampling,
    aten._upsample_bicubic2d_aa.vec: a_smooth_resampling,
    aten.upsample_trilinear3d.vec: lambda draw: a_resampling(draw, 3),
    aten.max_pool3d.default: lambda draw: a_max_pool(draw, 3),
    aten.avg_pool3d.default: lambda draw: an_avg_pool(draw, 3),
    aten.max_pool1d_with_indices.default: lambda draw: a_max_pool(draw, 1),
    aten.max_pool2d_with_indices.default: lambda draw: a_max_pool(draw, 2),
    aten.max_pool3d_with_indices.default: lambda draw: a_max_pool(draw, 3),
    **{
        getattr(aten, f"adaptive_{kind}_pool{rank}d").default: partial(an_adaptive_pool, rank=rank)
        for kind in ("avg", "max")
        for rank in (1, 2, 3)
    },
    aten._adaptive_avg_pool2d.default: partial(an_adaptive_pool, rank=2),
    aten.var.correction: a_variance,
    aten.var.dim: an_unbiased_variance,
    aten.std.correction: a_variance,
    aten.std.dim: an_unbiased_variance,
    aten.var_mean.correction: a_variance,
    aten.reciprocal.default: lambda draw: ((noise(draw, 3, 4).abs() + 0.1,), {}),
    aten.amax.default: a_reduction,
    aten.amin.default: a_reduction,
    aten.max.default: lambda draw: ((a_value(draw, 1),), {}),
    aten.min.default: lambda draw: ((a_value(draw, 1),), {}),
    aten.max.dim: lambda draw: ((*along_a_dim(draw), draw.random() < 0.5), {}),
    aten.min.dim: lambda draw: ((*along_a_dim(draw), draw.random() < 0.5), {}),
    aten.cumsum.default: lambda draw: (along_a_dim(draw), {}),
    aten.grid_sampler.default: a_sampler,
    aten.grid_sampler_2d.default: a_sampler,
    aten.group_norm.default: a_group_norm,
    aten.upsample_bilinear2d.vec: a_resize,
    aten.cdist.default: lambda draw: a_distance(draw, None, 1, 2),
    aten._cdist_forward.default: lambda draw: a_distance(draw, None, 2),
    aten.instance_norm.default: an_instance_norm,
    aten.pow.Tensor_Scalar: a_power,
    aten.pow.Scalar: lambda draw: ((draw.choice((2.0, 0.3, 2, 10.0, 0.0)), noise(draw, 3, 4)), {}),
    aten.topk.default: lambda draw: (
        (distinct(draw, 3, 5, 2), draw.choice((1, 1, 1, 2)), draw.randint(-3, 2), draw.random() < 0.5), {}
    ),
    aten.erf.default: lambda draw: ((noise(draw, 3, 4) * 3,), {}),
    **dict.fromkeys(ON_HALVES, halves),
    **dict.fromkeys(ON_ALL_NUMBERS, a_number),
    **{op: partial(inside, low=-0.999, high=0.999) for op in (aten.asin.default, aten.acos.default, aten.atanh.default)},
    aten.lerp.Scalar: lambda draw: ((noise(draw, 3, 5), noise(draw, 3, 5), draw.random() * 3 - 1), {}),
    aten.lerp.Tensor: lambda draw: (tuple(noise(draw, 3, 5) for _ in range(3)), {}),
    aten.prod.dim_int: lambda draw: ((noise(draw, 3, 5, 2), draw.randint(-3, 2), draw.random() < 0.5), {}),
    aten.prod.default: lambda draw: ((noise(draw, draw.randint(1, 3), 5),), {}),
    aten.dist.default: lambda draw: ((noise(draw, 3, 5), noise(draw, 5), draw.choice((0.0, 1.0, 2.0, 3.0, math.inf))), {}),
    aten.pairwise_distance.default: lambda draw: ((noise(draw, 3, 5), noise(draw, 5), draw.choice((1.0, 2.0)), 1e-3, draw.random() < 0.5), {}),
    aten.cosine_similarity.default: lambda draw: ((noise(draw, 3, 5, 2), noise(draw, 3, 5, 2), draw.randint(-3, 2)), {}),
    aten.logsumexp.default: lambda draw: ((noise(draw, 3, 5, 2), draw.choice(([1], [0, 2], [-1])), draw.random() < 0.5), {}),
    aten.acosh.default: partial(inside, low=1.01, high=9.0),
    **{op: partial(inside, low=0.01, high=99.0) for op in (aten.log2.default, aten.log10.default)},
    aten.log1p.default: partial(inside, low=-0.9, high=9.0),
    aten.logit.default: lambda draw: ((noise(draw, 3, 4).sigmoid(), draw.choice((None, 0.1))), {}),
    **{op: lambda draw: ((noise(draw, 3, 4), noise(draw, 3, 4)), {}) for op in (aten.atan2.default, aten.copysign.Tensor)},
    aten.logaddexp.default: lambda draw: ((noise(draw, 3, 4) * 9, noise(draw, 4)), {}),
    aten.signbit.default: lambda draw: ((torch.cat([noise(draw, 3, 4), torch.tensor([[0.0, -0.0, 1.0, -1.0]])]),), {}),
    aten.heaviside.default: lambda draw: ((*halves(draw)[0], noise(draw, 4)), {}),
    **{op: lambda draw: ((noise(draw, 3, 4) * 5, draw.choice((0.7, -1.3))), {}) for op in BY_A_NUMBER},
    **{op: lambda draw: ((noise(draw, 3, 4) * 5, noise(draw, 4) + 3), {}) for op in BY_A_TENSOR},
    aten.div.Scalar_mode: lambda draw: ((noise(draw, 3, 4) * 5, 0.7), a_mode(draw)),
    aten.div.Tensor_mode: lambda draw: ((noise(draw, 3, 4) * 5, noise(draw, 4) + 3), a_mode(draw)),
    aten.elu.default: lambda draw: ((noise(draw, 3, 4) * 3, *(draw.choice((0.5, 1.0, 2.0)) for _ in range(3))), {}),
    aten.threshold.default: lambda draw: ((noise(draw, 3, 4), 0.1, draw.choice((-3.0, 20.0))), {}),
    aten.lerp.Scalar: lambda draw: ((noise(draw, 3, 4), noise(draw, 3, 4), 0.3), {}),
    aten.lerp.Tensor: lambda draw: ((noise(draw, 3, 4), noise(draw, 3, 4), noise(draw, 4)), {}),
    aten.addcdiv.default: lambda draw: (
        (noise(draw, 3, 4), noise(draw, 4), noise(draw, 3, 1).abs() + 0.5), {"value": draw.choice((1, 0.5))}
    ),
    aten.clamp.Tensor: lambda draw: ((noise(draw, 3, 4), *draw.choice(((noise(draw, 4),), (None, noise(draw, 4))))), {}),
    **{op: lambda draw: ((noise(draw, 3, 4), noise(draw, 4)), {}) for op in (aten.clamp_min.Tensor, aten.clamp_max.Tensor)},
    aten.unfold.default: an_unfold,
    aten.im2col.default: an_im2col,
    aten.col2im.default: a_col2im,
    aten.median.default: lambda draw: ((a_value(draw),), {}),
    aten.median.dim: lambda draw: ((*along_a_dim(draw), draw.random() < 0.5), {}),
    aten.kthvalue.default: a_kth_value,
    aten.sort.default: a_sort,
    aten.sort.stable: a_stable_sort,
    aten.round.decimals: lambda draw: ((noise(draw, 3, 4) * 100,), {"decimals": draw.randint(-2, 3)}),
    aten.prelu.default: a_prelu,
    aten.embedding_bag.default: lambda draw: (an_embedding_bag(draw)[0][:-1], {}),
    aten.embedding_bag.padding_idx: lambda draw: ((*an_embedding_bag(draw)[0][:-1], draw.choice((None, 0, -1))), {}),
    aten._embedding_bag.default: an_embedding_bag,
    aten._embedding_bag_forward_only.default: an_embedding_bag,
}  # fmt: skip
CASES = [(module.RULE.name, op, function) for module in MODULES for op, function in module.RULE.functions.items()]


@pytest.mark.parametrize(("name", "op", "function"), CASES, ids=[f"{name}: {op}" for name, op, _ in CASES])
def test_a_decomposition_computes_what_the_op_computes(name: str, op: Any, function: Any) -> None:
    covered = 0

    @given(st.integers(0, 1 << 30))
    @settings(max_examples=50, deadline=None, derandomize=True)
    def check(number: int) -> None:
        nonlocal covered
        args, kwargs = DRAW[op](random.Random(number))
        try:
            wanted = op(*args, **kwargs)
        except RuntimeError:
            return  # no such op: a kernel larger than its input
        try:
            made = function(*args, **kwargs)
        except Declined:
            return
        covered += 1
        compare(made, wanted)

    check()
    assert covered >= 25, f"only {covered} of 50 draws were covered"


def compare(made: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
        return
    assert len(made) == len(wanted)
    for m, w in zip(made, wanted, strict=True):
        if m is not None:
            compare(m, w)
