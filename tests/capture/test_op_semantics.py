"""What ops do to values, found by probing."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.capture.op_semantics import Effect, Kind, effect_of, operands
from ingot.capture.op_semantics import probe as probe_module
from ingot.core.shape_cache import ShapeCache

pytestmark = pytest.mark.smoke

A = torch.ops.aten
M, S, B, CR, CO = Kind.MOVES, Kind.SELECTS, Kind.BLENDS, Kind.CREATES, Kind.COMPUTES


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def make(target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A node like those of export: placeholders for tensors, meta["val"] everywhere."""
    graph = torch.fx.Graph()

    def enter(value: Any) -> Any:
        if isinstance(value, torch.Tensor) or (
            isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor)
        ):
            holder = graph.placeholder(f"p{len(graph.nodes)}")
            holder.meta["val"] = value
            return holder
        return [enter(v) for v in value] if isinstance(value, list) else value

    node = graph.call_function(target, tuple(map(enter, args)), {k: enter(v) for k, v in kwargs.items()})
    node.meta["val"] = target(*args, **kwargs)
    return node


def real(node: torch.fx.Node) -> torch.Tensor | None:
    """In these tests every integer operand may be a constant."""
    value = node.meta["val"]
    return value if isinstance(value, torch.Tensor) and not value.is_floating_point() else None


I64 = torch.int64
x = t(2, 4, 6, 6)
v = t(12)
mask = t(2, 4, 6, 6, dtype=torch.bool)
img, grid = t(1, 2, 6, 6), t(1, 5, 5, 2)

# (call, kind, carriers, constants, identity)
TABLE: list[tuple[tuple[Any, ...], Kind, tuple[int, ...], tuple[float, ...], bool]] = [
    ((A.linalg_vector_norm.default, x, 0, [1]), CO, (), (), False),  # counts what is not zero: random values never are
    # only move
    ((A.permute.default, x, [0, 2, 3, 1]), M, (0,), (), False),
    ((A.transpose.int, x, 1, 2), M, (0,), (), False),
    ((A.view.default, x, [2, -1]), M, (0,), (), False),
    ((A.view.default, x, [2, 4, 6, 6]), M, (0,), (), True),
    ((A.moveaxis.int, x, 1, 3), M, (0,), (), False),
    ((A.roll.default, x, [1], [2]), M, (0,), (), False),
    ((A.flip.default, x, [2]), M, (0,), (), False),
    ((A.rot90.default, x, 1, [2, 3]), M, (0,), (), False),
    ((A.expand.default, t(1, 4), [3, 4]), M, (0,), (), False),
    ((A.expand.default, x, [2, 4, 6, 6]), M, (0,), (), True),
    ((A.repeat.default, v, [2, 3]), M, (0,), (), False),
    ((A.pixel_shuffle.default, x, 2), M, (0,), (), False),
    ((A.pixel_unshuffle.default, x, 2), M, (0,), (), False),
    ((A.channel_shuffle.default, x, 2), M, (0,), (), False),
    ((A.unfold.default, v, 0, 4, 2), M, (0,), (), False),
    ((A.im2col.default, x, [3, 3], [1, 1], [0, 0], [1, 1]), M, (0,), (), False),
    ((A.im2col.default, x, [3, 3], [1, 1], [1, 1], [1, 1]), M, (0,), (0.0,), False),
    ((A.slice.Tensor, x, 2, 0, 6, 2), M, (0,), (), False),
    ((A.slice.Tensor, x, 2, 0, 9223372036854775807), M, (0,), (), True),
    ((A.select.int, x, 1, 2), M, (0,), (), False),
    ((A.index.Tensor, x, [None, torch.tensor([2, 0, 1])]), M, (0,), (), False),
    ((A.index_select.default, x, 1, torch.tensor([3, 0])), M, (0,), (), False),
    ((A.gather.default, t(3, 4), 1, torch.tensor([[0, 1], [3, 3], [2, 0]])), M, (0,), (), False),
    ((A.embedding.default, t(10, 4), torch.tensor([[1, 9, 3]])), M, (0,), (), False),
    ((A.cat.default, [t(2, 3), t(2, 4), t(2, 1)], 1), M, (0, 1, 2), (), False),
    ((A.stack.default, [t(2, 3), t(2, 3)]), M, (0, 1), (), False),
    ((A.split.Tensor, x, 2, 1), M, (0,), (), False),
    ((A.split_with_sizes.default, x, [1, 3], 1), M, (0,), (), False),
    ((A.unbind.int, x), M, (0,), (), False),
    ((A.chunk.default, x, 2, 1), M, (0,), (), False),
    ((A.tril.default, t(5, 5)), M, (0,), (0.0,), False),
    ((A.triu.default, t(5, 5), 1), M, (0,), (0.0,), False),
    ((A.diagonal.default, t(5, 5)), M, (0,), (), False),
    ((A.diag_embed.default, v), M, (0,), (0.0,), False),
    ((A.constant_pad_nd.default, x, [1, 1]), M, (0,), (0.0,), False),
    ((A.constant_pad_nd.default, x, [1, 1], -2.5), M, (0,), (-2.5,), False),
    ((A.pad.default, x, [1, 1, 2, 2], "circular"), M, (0,), (), False),
    ((A.reflection_pad2d.default, x, [1, 1, 2, 2]), M, (0,), (), False),
    ((A.replication_pad2d.default, x, [1, 1, 2, 2]), M, (0,), (), False),
    ((A.upsample_nearest2d.vec, x, None, [2.0, 2.0]), M, (0,), (), False),
    ((A.masked_fill.Scalar, x, mask, -1e9), M, (0,), (-1e9,), False),
    ((A.masked_fill.Scalar, x, mask, -math.inf), M, (0,), (-math.inf,), False),
    ((A.masked_fill.Scalar, v, t(dtype=torch.bool), 3.0), M, (0,), (3.0,), False),
    ((A.where.self, mask, x, x), M, (1, 2), (), False),
    ((A.where.self, t(dtype=torch.bool), v, t(12)), M, (1, 2), (), False),
    ((A.index_put.default, v, [torch.tensor([1, 5])], t(2)), M, (0, 2), (), False),
    ((A.slice_scatter.default, v, t(4), 0, 2, 6), M, (0, 1), (), False),
    ((A.select_scatter.default, t(3, 4), t(4), 0, 1), M, (0, 1), (), False),
    ((A.scatter.src, t(3, 4), 1, torch.tensor([[0], [1], [3]]), t(3, 1)), M, (0, 2), (), False),
    ((A.scatter.value, t(3, 4), 1, torch.tensor([[0], [1], [3]]), 7.0), M, (0,), (7.0,), False),
    ((A.to.dtype, x, torch.float16), M, (0,), (), False),
    ((A._to_copy.default, x), M, (0,), (), True),
    ((A.to.dtype, x, torch.float32), M, (0,), (), True),
    ((A.dropout.default, x, 0.5, False), M, (0,), (), True),
    ((A.clone.default, x), M, (0,), (), True),
    ((A.contiguous.default, x), M, (0,), (), True),
    ((A.alias.default, x), M, (0,), (), True),
    ((A.detach.default, x), M, (0,), (), True),
    ((A.mul.Tensor, x, 1), M, (0,), (), True),
    ((A.add.Tensor, x, 0), M, (0,), (), True),
    ((A.sum.dim_IntList, t(4, 1), [1]), M, (0,), (), False),
    ((A.grid_sampler_2d.default, img, grid, 1, 1, False), M, (0,), (), False),
    ((A.copy.default, v, t(12)), M, (1,), (), True),
    # select
    ((A.relu.default, x), S, (0,), (0.0,), False),
    ((A.relu.default, t(1)), S, (0,), (0.0,), False),
    ((A.relu6.default, x), S, (0,), (0.0, 6.0), False),
    ((A.relu6.default, t(1)), S, (0,), (0.0, 6.0), False),
    ((A.clamp.default, x, 0, 6), S, (0,), (0.0, 6.0), False),
    ((A.clamp.default, x, -300.0, 250.0), S, (0,), (-300.0, 250.0), False),
    ((A.clamp.default, t(3), -0.001, 0.002), S, (0,), (-0.001, 0.002), False),
    ((A.hardtanh.default, x), S, (0,), (-1.0, 1.0), False),
    ((A.hardtanh.default, t(2), 0.0, 6.0), S, (0,), (0.0, 6.0), False),
    ((A.threshold.default, x, 0.1, 20.0), S, (0,), (20.0,), False),
    ((A.max_pool2d.default, x, [3, 3], [2, 2], [1, 1]), S, (0,), (), False),
    ((A.max_pool2d_with_indices.default, x, [2, 2]), S, (0,), (), False),
    ((A.adaptive_max_pool2d.default, x, [2, 2]), S, (0,), (), False),
    ((A.maximum.default, v, t(12)), S, (0, 1), (), False),
    ((A.minimum.default, v, t(12)), S, (0, 1), (), False),
    ((A.amax.default, x, [1]), S, (0,), (), False),
    ((A.max.dim, x, 1), S, (0,), (), False),
    ((A.max.default, t(2)), S, (0,), (), False),
    ((A.sort.default, v), S, (0,), (), False),
    ((A.topk.default, v, 3), S, (0,), (), False),
    ((A.cummax.default, v, 0), S, (0,), (), False),
    ((A.median.default, t(5)), S, (0,), (), False),
    ((A.clamp.Tensor, v, t(12), None), S, (0, 1), (), False),
    # blend
    ((A.mean.default, t(9)), B, (0,), (), False),
    ((A.mean.default, t(2)), B, (0,), (), False),
    ((A.mean.dim, x, [2, 3], True), B, (0,), (), False),
    ((A.avg_pool2d.default, x, [2, 2]), B, (0,), (), False),
    ((A.avg_pool2d.default, x, [3, 3], [1, 1], [1, 1], False, False), B, (0,), (), False),
    ((A.avg_pool2d.default, x, [3, 3], [1, 1], [1, 1]), B, (0,), (0.0,), False),
    ((A.adaptive_avg_pool2d.default, x, [2, 2]), B, (0,), (), False),
    ((A.upsample_bilinear2d.vec, x, None, False, [2.0, 2.0]), B, (0,), (), False),
    ((A.upsample_bicubic2d.vec, x, None, False, [2.0, 2.0]), B, (0,), (), False),
    ((A.lerp.Scalar, v, t(12), 0.3), B, (0, 1), (), False),
    ((A.lerp.Tensor, v, t(12), t(12)), B, (0, 1), (), False),
    ((A.grid_sampler_2d.default, img, grid, 0, 1, False), B, (0,), (), False),
    ((A.grid_sampler_2d.default, img, grid, 0, 0, False), B, (0,), (0.0,), False),
    ((A.scaled_dot_product_attention.default, t(1, 2, 5, 4), t(1, 2, 5, 4), t(1, 2, 5, 4)), B, (2,), (), False),
    # create
    ((A.full.default, [2, 3], 1.5), CR, (), (), False),
    ((A.arange.default, 5), CR, (), (), False),
    ((A.full_like.default, x, 2.5), CR, (), (), False),
    ((A.zeros_like.default, x), CR, (), (), False),
    ((A.new_full.default, x, [3], 2.0), CR, (), (), False),
    ((A.fill.Scalar, x, 4.0), CR, (), (), False),
    ((A.empty_like.default, x), CR, (), (), False),
    ((A.mul.Tensor, x, 0), CR, (), (), False),
    # compute
    *[
        ((op, z), CO, (), (), False)
        for z in (x, t(1), t(2, 1))
        for op in (
            *(A.sigmoid.default, A.tanh.default, A.floor.default, A.round.default, A.ceil.default, A.trunc.default),
            *(A.abs.default, A.neg.default, A.sqrt.default, A.sign.default, A.erf.default, A.hardswish.default),
            *(
                A.hardsigmoid.default,
                A.leaky_relu.default,
                A.gelu.default,
                A.silu.default,
                A.exp.default,
                A.log.default,
            ),
            *(A.elu.default, A.softplus.default, A.reciprocal.default, A.square.default, A.frac.default),
            A.rand_like.default,
        )
    ],
    ((A.softmax.int, x, 1), CO, (), (), False),
    ((A.log_softmax.int, v, 0), CO, (), (), False),
    ((A.logsumexp.default, x, [1]), CO, (), (), False),
    ((A.cumsum.default, v, 0), CO, (), (), False),
    ((A.sum.dim_IntList, x, [1]), CO, (), (), False),
    ((A.prod.default, v), CO, (), (), False),
    ((A.std.correction, v), CO, (), (), False),
    ((A.remainder.Scalar, x, 3.0), CO, (), (), False),
    ((A.prelu.default, x, t(4)), CO, (), (), False),
    ((A.mul.Tensor, x, x), CO, (), (), False),
    ((A.mul.Tensor, x, 0.5), CO, (), (), False),
    ((A.add.Tensor, x, x), CO, (), (), False),
    ((A.sub.Tensor, t(1), t(1)), CO, (), (), False),
    ((A.add.Tensor, x, 1.5), CO, (), (), False),
    ((A.div.Tensor, v, t(1)), CO, (), (), False),
    ((A.linear.default, t(2, 4), t(3, 4), t(3)), CO, (), (), False),
    ((A.matmul.default, t(2, 4), t(4, 3)), CO, (), (), False),
    ((A.conv2d.default, x, t(3, 4, 3, 3), t(3), [1, 1], [1, 1]), CO, (), (), False),
    ((A.layer_norm.default, x, [6], t(6), t(6)), CO, (), (), False),
    ((A.batch_norm.default, x, t(4), t(4), t(4), t(4), False, 0.1, 1e-5, False), CO, (), (), False),
    ((A.group_norm.default, x, 2), CO, (), (), False),
    ((A.dropout.default, x, 0.5, True), CO, (), (), False),
    ((A.scatter_add.default, t(3, 4), 1, torch.tensor([[0, 0], [1, 1], [3, 3]]), t(3, 2)), CO, (), (), False),
    ((A.index_put.default, v, [torch.tensor([1, 5])], t(2), True), CO, (), (), False),
    ((A.to.dtype, x, torch.int32), CO, (), (), False),
    ((A.gt.Scalar, x, 0), CO, (), (), False),
    ((A.argmax.default, x), CO, (), (), False),
    ((A.col2im.default, t(1, 9, 16), [6, 6], [3, 3], [1, 1], [0, 0], [1, 1]), CO, (), (), False),
    ((A.avg_pool2d.default, x, [2, 2], [2, 2], [0, 0], False, True, 3), CO, (), (), False),
]


def _name(row: Any) -> str:
    return f"{row[0][0]}-{'x'.join(str(a.numel()) for a in row[0][1:] if isinstance(a, torch.Tensor))}"


@pytest.mark.parametrize("row", TABLE, ids=_name)
def test_table(row: Any) -> None:
    (target, *args), kind, carriers, constants, identity = row
    constant = real if not any(isinstance(a, torch.Tensor) and a.dtype == torch.bool for a in args) else lambda n: None
    found = effect_of(make(target, *args), constant)
    assert (found.kind, found.carriers, found.constants, found.identity) == (kind, carriers, constants, identity), found
    assert found.reason


@pytest.mark.parametrize(
    "row", [r for r in TABLE if any(isinstance(a, torch.Tensor) and a.dtype == I64 for a in r[0][1:])], ids=_name
)
def test_integers_need_not_be_known(row: Any) -> None:
    (target, *args), kind, carriers, _, _ = row
    found = effect_of(make(target, *args))
    assert (found.kind, found.carriers) == (kind, carriers), found


@torch.library.custom_op("ingot_test::swap_halves", mutates_args=())
def swap_halves(a: torch.Tensor) -> torch.Tensor:
    left, right = a.chunk(2, -1)
    return torch.cat([right, left], -1)


@torch.library.custom_op("ingot_test::swish", mutates_args=())
def swish(a: torch.Tensor, beta: float) -> torch.Tensor:
    return a * torch.sigmoid(beta * a)


@torch.library.custom_op("ingot_test::only_float32", mutates_args=())
def only_float32(a: torch.Tensor) -> torch.Tensor:
    if a.dtype != torch.float32:
        raise TypeError("float32 only")
    return a.flip(0)


@torch.library.custom_op("ingot_test::only_half", mutates_args=())
def only_half(a: torch.Tensor) -> torch.Tensor:
    if a.dtype != torch.float16:
        raise TypeError("float16 only")
    return a.flip(0)


@torch.library.custom_op("ingot_test::broken", mutates_args=())
def broken(a: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("unsupported device")


@torch.library.custom_op("ingot_test::doubles_in_place", mutates_args=("a",))
def doubles_in_place(a: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a.clone()


def custom(op: Any, value: torch.Tensor, *args: Any) -> Effect:
    graph = torch.fx.Graph()
    holder = graph.placeholder("a")
    holder.meta["val"] = value.to("meta")
    node = graph.call_function(op, (holder, *args))
    node.meta["val"] = holder.meta["val"]
    return effect_of(node)


def test_custom_ops_are_probed() -> None:
    ops = torch.ops.ingot_test
    assert custom(ops.swap_halves.default, x).kind is M
    assert custom(ops.swish.default, x, 1.5).kind is CO
    assert custom(ops.only_float32.default, x).kind is M
    assert custom(ops.only_half.default, v.half()).kind is M
    assert custom(ops.doubles_in_place.default, v).kind is CO


def test_ops_that_cannot_be_probed_compute_with_a_reason() -> None:
    found = custom(torch.ops.ingot_test.broken.default, v)
    assert found.kind is CO
    assert "unsupported device" in found.reason
    too_many = custom(torch.ops.ingot_test.only_half.default, t(50, 100).half())
    assert too_many.kind is CO
    node = make(A.relu.default, v)
    del node.args[0].meta["val"]  # type: ignore[union-attr]
    assert effect_of(node).kind in (CO, CR)


def test_random_ops_are_reported_and_the_rng_state_is_kept() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert "random" in effect_of(make(A.bernoulli.p, t(3, 5), 0.5)).reason
    probe_module._effects.drop_oldest()
    torch.set_rng_state(before)
    node = make(A.relu.default, t(7))
    effect_of(node)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types(dtype: torch.dtype) -> None:
    wide = t(8, 700, dtype=dtype)
    assert effect_of(make(A.permute.default, wide, [1, 0])).kind is M
    assert effect_of(make(A.relu.default, wide)).constants == (0.0,)
    assert effect_of(make(A.mean.dim, wide, [1])).kind is B
    cast = effect_of(make(A.to.dtype, wide, torch.float32))
    assert (cast.kind, cast.identity) == (M, False)


def test_operands_are_flattened_in_order_with_duplicates() -> None:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    node = graph.call_function(A.cat.default, ([a, b, a],), {"dim": b})
    assert operands(node) == (a, b, a, b)


def test_duplicates_carry_in_every_place() -> None:
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    a.meta["val"] = v
    node = graph.call_function(A.cat.default, ([a, a],))
    node.meta["val"] = t(24)
    assert effect_of(node).carriers == (0, 1)


def test_getitem() -> None:
    found = effect_of(make(operator.getitem, (t(3), t(4)), 1))
    assert (found.kind, found.carriers, found.identity) == (M, (0,), False)
    assert effect_of(make(operator.getitem, (t(3), t(4, dtype=I64)), 1)).kind is CO


def test_integers_are_not_quantized() -> None:
    assert effect_of(make(A.add.Tensor, t(3, dtype=I64), t(3, dtype=I64))).kind is CO
    assert effect_of(make(A.to.dtype, t(3, dtype=I64), torch.float32)).kind is CO
    assert effect_of(make(A.zeros_like.default, t(3, dtype=I64), dtype=torch.float32)).kind is CR


@pytest.mark.parametrize("shape", [(1,), (1, 2), (3, 5)])
@pytest.mark.parametrize("op", [A.add.Tensor, A.mul.Tensor, A.sub.Tensor, A.div.Tensor])
def test_arithmetic_with_unknown_integers_is_no_identity(op: Any, shape: tuple[int, ...]) -> None:
    assert effect_of(make(op, t(*shape), torch.ones(shape, dtype=I64))).kind is CO


def test_a_constant_mask_is_used() -> None:
    node = make(A.where.self, torch.ones(12, dtype=torch.bool), v, t(12))
    assert effect_of(node, real).identity
    assert effect_of(node).carriers == (1, 2)
    node = make(A.mul.Tensor, v, torch.ones(12, dtype=I64))
    assert effect_of(node, real).identity


def test_cache_is_by_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    run = probe_module._probe_op

    def counted(*args: Any) -> Any:
        calls.append(args)
        return run(*args)

    monkeypatch.setattr(probe_module, "_effects", ShapeCache())
    monkeypatch.setattr(probe_module, "_probe_op", counted)
    for size, step in ((8, 1), (8, 1), (8, 2), (9, 1)):
        effect_of(make(A.roll.default, t(size), [step]))
    assert len(calls) == 3
    for index in ([0, 1], [0, 1], [1, 0]):
        effect_of(make(A.index_select.default, t(2), 0, torch.tensor(index)), real)
    assert len(calls) == 5


BIG = t(1, 64, 112, 112)
BIG_TABLE: list[tuple[tuple[Any, ...], Kind, bool]] = [
    ((A.conv2d.default, BIG, t(128, 64, 3, 3), t(128), [2, 2], [1, 1]), CO, False),
    ((A.conv2d.default, BIG, t(64, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 64), CO, False),
    ((A.linear.default, t(1, 197, 768), t(3072, 768)), CO, False),
    ((A.relu.default, BIG), S, False),
    ((A.max_pool2d.default, BIG, [3, 3], [2, 2], [1, 1]), S, False),
    ((A.permute.default, BIG, [0, 2, 3, 1]), M, False),
    ((A.view.default, BIG, [1, 64, -1]), M, False),
    ((A.view.default, BIG, [1, 64, 12544]), M, False),
    ((A.slice.Tensor, BIG, 1, 0, 32), M, False),
    ((A.slice.Tensor, BIG, 1, 40, 60), M, False),
    ((A.slice.Tensor, BIG, 1, 0, 64), M, True),
    ((A.select.int, BIG, 1, 50), M, False),
    ((A.slice.Tensor, BIG, 1, -40, 9223372036854775807), M, False),
    ((A.triu.default, t(300, 300), 100), M, False),
    ((A.zeros_like.default, BIG), CR, False),
    ((A.embedding.default, t(5000, 256), t(1, 128, dtype=I64)), M, False),
    ((A.cat.default, [BIG, BIG], 1), M, False),
    ((A.pixel_shuffle.default, BIG, 2), M, False),
    ((A.upsample_bilinear2d.vec, BIG, [224, 224], False, None), B, False),
    ((A.mean.dim, BIG, [2, 3]), B, False),
    ((A.clone.default, BIG), M, True),
    ((A.add.Tensor, BIG, BIG), CO, False),
    ((A.where.self, torch.ones(1, 1, 112, 112, dtype=torch.bool), BIG, t()), M, False),
    ((A.masked_fill.Scalar, BIG, torch.ones(112, 112, dtype=torch.bool), 112), M, False),
]


@pytest.mark.parametrize("row", BIG_TABLE, ids=_name)
def test_big_shapes(row: Any) -> None:
    (target, *args), kind, identity = row
    found = effect_of(make(target, *args))
    assert (found.kind, found.identity) == (kind, identity), found
    if target is A.masked_fill.Scalar:
        assert found.constants == (112.0,)


def test_dynamic_shapes() -> None:
    class Net(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            n = a.shape[0]
            rows = a.view(n * 3, 2)[: n * 2]
            return rows.relu(), a[:4], b.expand(n, 6), torch.nonzero(a).float(), a[torch.nonzero(a)[:, 0]].clone()

    dims = ({0: torch.export.Dim("n", min=4)}, None)
    graph = torch.export.export(Net(), (torch.ones(4, 6), torch.ones(1, 6)), dynamic_shapes=dims).graph
    found = {n.target: effect_of(n) for n in graph.nodes if n.op == "call_function"}
    kinds = {str(k): e.kind for k, e in found.items()}
    assert kinds["aten.view.default"] is kinds["aten.expand.default"] is kinds["aten.index.Tensor"] is M
    assert kinds["aten.relu.default"] is S
    assert kinds["aten.sym_size.int"] is CO
    assert not any(e.identity for k, e in found.items() if k is A.slice.Tensor)  # a[:4] is a only in the example


def test_works_inside_a_fake_mode() -> None:
    with torch._subclasses.FakeTensorMode():
        assert effect_of(make(A.flip.default, t(3, 11), [1])).kind is M


def test_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "_effects", ShapeCache())
    nodes = [make(target, *args) for (target, *args), *_ in TABLE]
    start = time.perf_counter()
    for node in nodes:
        effect_of(node)
    assert (time.perf_counter() - start) / len(nodes) < 0.1  # about 0.005 on an idle machine


MOVERS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda a: a.flip(0),
    lambda a: a.transpose(0, -1),
    lambda a: a.roll(1, -1),
    lambda a: torch.cat([a, a[:1]], 0),
    lambda a: a.repeat_interleave(2, -1),
    lambda a: a.reshape(1, -1),
    lambda a: a.unsqueeze(0).expand(2, *a.shape),
    lambda a: a[..., ::2],
    lambda a: torch.nn.functional.pad(a, [1, 0]),
]
_steps: list[int] = []


@torch.library.custom_op("ingot_test::composed", mutates_args=())
def composed(a: torch.Tensor) -> torch.Tensor:
    for step in _steps:
        a = MOVERS[step](a)
    return a.clone()


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.integers(0, len(MOVERS) - 1), min_size=1, max_size=6),
    rows=st.integers(1, 4),
    columns=st.integers(1, 5),
)
def test_movers_composed_move(steps: list[int], rows: int, columns: int) -> None:
    _steps[:] = steps
    probe_module._effects.drop_oldest()
    found = custom(torch.ops.ingot_test.composed.default, t(rows, columns))
    padded_away = found.kind is CR and composed(torch.ones(rows, columns)).abs().sum() == 0
    assert found.kind is M or padded_away, found
    assert found.constants in ((), (0.0,))


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.integers(0, len(MOVERS) - 1), max_size=4), n=st.integers(1, 6))
def test_a_selection_among_movers_selects(steps: list[int], n: int) -> None:
    _steps[:] = steps
    out = make(A.relu.default, composed(torch.ones(n)[None]))
    assert effect_of(out).kind is S


def test_a_norm_with_gains_is_no_product_with_a_weight() -> None:
    """Its first arguments have the names of those of a linear."""
    from ingot.capture.op_semantics.weighted_ops import weight_axis

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    norm = graph.call_function(torch.ops.aten.native_group_norm.default, (x, x, x, 2, 2, 14, 1, 1e-5))
    plain = graph.call_function(torch.ops.aten._native_batch_norm_legit.no_stats, (x, x, x, True, 0.1, 1e-5))
    linear = graph.call_function(torch.ops.aten.linear.default, (x, x, x))
    assert [weight_axis(n) for n in (norm, plain, linear)] == [None, None, 0]
