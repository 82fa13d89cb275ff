"""Each rewrite gives the same outputs on random inputs, and leaves ops that it does not match unchanged."""

from __future__ import annotations

import gc
import random
import re
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import ingot
from ingot.config.recipe import Recipe
from ingot.core.fx import call, calls, value_name
from ingot.rewrite import permute_chains
from ingot.rewrite.apply import rewrite_for
from ingot.rewrite.rule import Rule
from ingot.targets.registry import find_target
from ingot.targets.xnnpack.lowering import XnnpackLowering

aten = torch.ops.aten


class Wrap(nn.Module):
    def __init__(self, forward: Any, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.run = forward
        for i, t in enumerate(tensors):
            self.register_buffer(f"t{i}", t)
        self.n = len(tensors)

    def forward(self, *inputs: Any) -> Any:
        return self.run(*inputs, *[getattr(self, f"t{i}") for i in range(self.n)])


def scatter(x: Any) -> Any:
    z = torch.zeros(2, 8, 4)
    z[:, 2:5] = x[:, :3]
    z[:, -1:] = x[:, :1] * 2
    return z


X4, X3, X2 = torch.randn(2, 6, 5, 4), torch.randn(2, 6, 4), torch.randn(6, 4)
X5, W5, BAG = torch.randn(2, 4, 6, 5, 7), torch.randn(6, 2, 3, 2, 3), torch.tensor([1, 2, 8, 0, 1])
Q = torch.randn(2, 3, 5, 8)
MASK = torch.rand(2, 1, 5, 5) > 0.4
EMPTY_ROW = MASK.clone()
EMPTY_ROW[0, 0, 2] = False

CASES = {
    "layer norm": ("layer-norm-as-matmul", lambda x, w, b: F.layer_norm(x, (4,), w, b), (X4,), (torch.randn(4), torch.randn(4))),
    "layer norm, plain": ("layer-norm-as-matmul", lambda x: F.layer_norm(x, (4,), eps=1e-3), (X3,), ()),
    "layer norm over two dimensions": ("layer-norm-as-matmul", lambda x, w, b: F.layer_norm(x, (6, 4), w, b), (X3,), (torch.randn(6, 4), torch.randn(6, 4))),
    "layer norm of whole images, plain": ("layer-norm-as-matmul", lambda x: F.layer_norm(x, (6, 5, 4), eps=1e-3), (X4,), ()),
    "pairs picked": ("gather-as-matmul", lambda x: (x @ x.mT)[:, *torch.tril_indices(6, 6, -1)], (X3,), ()),
    "pairs picked from the end": ("gather-as-matmul", lambda x: (x * 2)[:, [[0, -1], [5, 2]], [[1, 1], [-2, 0]]], (X3,), ()),
    "learned exponent": ("constant-power", lambda x, p: x.abs().clamp(min=1e-6).pow(p) + (x * 2) ** p.round(), (X3,), (torch.tensor([2.6]),)),
    "learned exponents": ("constant-power", lambda x, p: x.abs().clamp(min=1e-3).pow(p), (X3,), (torch.tensor([0.3, 1.7, 2.6, -0.4]),)),
    "powers of a number": ("missing-power-as-products", lambda x: 2.0 ** (x * 2) + 0.3**x, (X3,), ()),
    "a high power": ("missing-power-as-products", lambda x: (x * 0.9) ** 24, (X3,), ()),
    "counted": ("booleans-as-float", lambda x: x * ((x > 0).sum(-1, keepdim=True) == 2) + (x < 1).sum(), (X3,), ()),
    "a mask unless it is empty": ("booleans-as-float", lambda x: (lambda m: x.masked_fill(torch.where(m.all(-1, True), torch.zeros_like(m), m), 9.0))(x > 0), (X3,), ()),
    "written at an index": ("index-put-as-where", lambda x, i: (x * 2).index_copy(1, i, x[:, :2]), (X3, torch.tensor([4, 1])), ()),
    "the last token": ("gather-as-one-hot-product", lambda x, n: (x * 2)[torch.arange(2), n - 1] * 3, (X3, torch.tensor([6, 2])), ()),
    "tokens by number": ("gather-as-one-hot-product", lambda x, i: (x * 2).index_select(1, i) + (x + 1)[:, i], (X3, torch.tensor([3, 0, -1, 3]).abs()), ()),
    "tokens of each": ("gather-as-one-hot-product", lambda x, i: (x * 2).gather(1, i[:, :, None].expand(2, 3, 4)), (X3, torch.tensor([[3, 0, 1], [5, 5, 2]])), ()),
    "the largest and its place": ("extremum-as-max-pool", lambda x: (lambda m: x * m.values[:, None] + m.indices[:, None])((x * 2).max(1)), (X3,), ()),
    "the first of a ranking": ("extremum-as-max-pool", lambda x: (lambda m: (m.values * 2, m.indices))((x * 2).topk(1, 1, largest=False)), (X3,), ()),
    "sums by number": ("gather-as-one-hot-product", lambda x, i: (x * 2).index_add(1, i, x[:, :3]) * 2, (X3, torch.tensor([4, 0, 4])), ()),
    "sums by number, of each": ("gather-as-one-hot-product", lambda x, i: torch.zeros(2, 5, 4).scatter_add(1, i[:, :, None].expand(2, 6, 4), x * 2), (X3, torch.randint(0, 5, (2, 6))), ()),
    "marked places are written": ("masked-assignment-as-where", lambda x, v: torch.index_put(torch.index_put(x * 2, [x > 1], torch.tensor(7.0)), [x[..., 0] < 0], v), (X3,), (torch.randn(4),)),
    "a diagonal": ("diagonal-as-selection", lambda x: (x @ x.mT).diagonal(0, 1, 2) + (x @ x.mT).diagonal(-2, 2, 1).sum(), (X3,), ()),
    "numbers of overloads of their own": ("scalar-as-constant", lambda x: torch.ops.aten.mul.Scalar(x, 0.5) + torch.ops.aten.div.Scalar(x, 3), (X3,), ()),
    "a template found": ("conv-with-computed-kernel-as-bmm", lambda x, y: F.conv2d(x, (y * 2)[:, :, 1:4, 1:3], padding=1), (X4, X4 + 1), ()),
    "slice assignment": ("slice-scatter-as-cat", scatter, (X3,), ()),
    "depth pooling": ("pool3d-as-2d", lambda x: F.avg_pool3d(x, (3, 1, 1), 1), (torch.randn(2, 1, 6, 5, 4),), ()),
    "conv3d": ("conv3d-as-conv2d", lambda x, w, b: F.conv3d(x, w, b, (2, 1, 1), 1, (2, 1, 1), 2), (X5,), (W5, torch.randn(6))),
    "conv3d of one example": ("conv3d-as-conv2d", lambda x, w: F.conv3d(x, w, groups=2), (X5[0],), (W5,)),
    "transposed conv3d": ("conv-transpose3d-as-2d", lambda x, w: F.conv_transpose3d(x, w, None, 2, 1, 1), (X5,), (W5[:4],)),
    "average with padding": ("avg-pool-as-depthwise-conv", lambda x: F.avg_pool2d(x, 3, 1, 1), (X4,), ()),
    "average with a divisor": ("avg-pool-as-depthwise-conv", lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), (X4,), ()),
    "average of what is inside, with a divisor": ("avg-pool-as-depthwise-conv", lambda x: F.avg_pool2d(x, 2, 2, 1, count_include_pad=False, divisor_override=4), (X4,), ()),
    "average of one example": ("avg-pool-as-depthwise-conv", lambda x: F.avg_pool2d(x, 3, 2, (1, 0)), (X4[0],), ()),
    "max_pool3d": ("pool3d-as-2d", lambda x: F.max_pool3d(x, 2, ceil_mode=True), (X5,), ()),
    "max_pool3d with indices": ("pool-indices-by-windows", lambda x: F.max_pool3d(x, 2, return_indices=True), (X5,), ()),
    "adaptive max": ("adaptive-pool-as-pool", lambda x: F.adaptive_max_pool2d(x, (3, 4)), (X4,), ()),
    "adaptive max with indices": ("pool-indices-by-windows", lambda x: F.adaptive_max_pool2d(x, (3, 4), True), (X4,), ()),
    "adaptive average in 3-d": ("adaptive-pool-as-pool", lambda x: F.adaptive_avg_pool3d(x, (3, 2, 5)), (X5,), ()),
    "median of all": ("order-statistics-as-topk", lambda x: x.median(), (X3,), ()),
    "median and its index": ("order-statistics-as-topk", lambda x: x.median(1, keepdim=True), (X3,), ()),
    "sorted": ("order-statistics-as-topk", lambda x: x.sort(dim=1, descending=True), (X3,), ()),
    "decimals": ("round-decimals-as-round", lambda x: torch.round(x * 10, decimals=1), (X3,), ()),
    "embedding bag": ("embedding-bag-as-matmul", lambda i, o, w: F.embedding_bag(i, w, o), (BAG, torch.tensor([0, 3])), (torch.randn(9, 4),)),
    "softplus": ("softplus-decomposed", lambda x: F.softplus(x * 30), (X3,), ()),
    "matmul by a constant": ("constant-product-as-linear", lambda x, w: x @ w, (X3,), (torch.randn(4, 7),)),
    "matmul, batched": ("matmul-as-bmm", lambda x, y: x @ y, (Q, Q.mT.contiguous()), ()),
    "matmul, rows": ("matmul-as-bmm", lambda x, y: x @ y, (X3, torch.randn(4, 5)), ()),
    "mm": ("matmul-as-bmm", lambda x, y: torch.mm(x, y.t()), (X2, X2 + 1), ()),
    "addmm by a constant": ("constant-product-as-linear", lambda x, w, b: torch.addmm(b, x, w), (X2,), (torch.randn(X2.shape[1], 5), torch.randn(5))),
    "attention": ("attention-decomposed", lambda q: F.scaled_dot_product_attention(q, q + 1, q - 1), (Q,), ()),
    "attention, scale": ("attention-decomposed", lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.7), (Q,), ()),
    "attention, causal": ("attention-decomposed", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (Q,), ()),
    "attention, float mask": ("attention-decomposed", lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (Q, torch.randn(5, 5)), ()),
    "attention, boolean mask": ("attention-decomposed", lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (Q, MASK), ()),
    "attention, a row without keys": ("attention-decomposed", lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (Q, EMPTY_ROW), ()),
    "attention, a mask for each head": ("attention-decomposed", lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (Q, torch.randn(2, 3, 5, 5)), ()),
    "attention, multi-query": ("attention-decomposed", lambda q: F.scaled_dot_product_attention(q, q[:, :1], q[:, :1] * 2), (Q,), ()),
    "attention, multi-query by expand": ("attention-decomposed", lambda q: F.scaled_dot_product_attention(q, (q[:, :1] + 1).expand(2, 3, 5, 8), q[:, :1].expand(2, 3, 5, 8)), (Q,), ()),
    "attention, grouped-query with a mask": ("attention-decomposed", lambda q, k, m: F.scaled_dot_product_attention(q, k, k - 1, m, enable_gqa=True), (torch.randn(2, 6, 5, 8), Q, MASK), ()),
    "attention, keys repeated": ("attention-decomposed", lambda q, k: F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), (k * 2)[:, :, None].expand(2, 3, 2, 5, 8).reshape(2, 6, 5, 8)), (torch.randn(2, 6, 5, 8), Q), ()),
    "moves": ("merge-permute-chains", lambda x: (x * 2).permute(0, 2, 1, 3).permute(0, 2, 3, 1).reshape(2, 5, 24), (X4,), ()),
    "means": ("mean-keepdim", lambda x: x.mean((2, 3)), (X4,), ()),
    "global average": ("mean-keepdim", lambda x: F.adaptive_avg_pool2d(x, 1), (X4,), ()),
    "means of means": ("mean-keepdim", lambda x: (x * 2).mean(3).mean(2).mean(-1, keepdim=True), (X4,), ()),
    "mean over inner axes": ("mean-keepdim", lambda x: x.mean((1, 2)), (X4,), ()),
    "mean over outer axes, kept": ("mean-keepdim", lambda x: x.mean((0, 2, 1), keepdim=True), (X4,), ()),
    "mean over tokens": ("mean-keepdim", lambda x: x.mean(1), (X3,), ()),
    "mean of everything": ("mean-keepdim", lambda x: x.mean() + x, (X3,), ()),
    "mean read twice": ("mean-keepdim", lambda x: (lambda m: m.mean(1) + m[:, 0])(x.mean(2)), (X3,), ()),
    "softmax over channels": ("softmax-in-3d", lambda x: x.softmax(1), (X4,), ()),
    "softmax over tokens": ("softmax-in-3d", lambda x: x.softmax(-2), (X3,), ()),
    "average pool, counting pads": ("avg-pool-with-factors", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (X4,), ()),
    "group norm": ("group-norm-as-layer-norm", lambda x, w, b: F.group_norm(x, 3, w, b), (X4,), (torch.randn(6), torch.randn(6))),
    "largest of an axis": ("extremum-as-max-pool", lambda x: x.amax(1, keepdim=True) - x.min(2).values[:, :, None], (X3,), ()),
    "standard deviation": ("variance-as-means", lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1), (X4,), ()),
    "log of a softmax": ("log-softmax-as-difference", lambda x: x.log_softmax(1), (X4,), ()),
    "running sum": ("cumsum-as-matmul", lambda x: x.cumsum(1), (X3,), ()),
    "product and logarithm of a sum": ("products-by-halves", lambda x: x.prod(1, True) + x.logsumexp((1, 2), True) + x, (X3,), ()),
    "average over more than the image": ("avg-pool-with-factors", lambda x: F.avg_pool2d(x, 2560, ceil_mode=True), (X4,), ()),
    "rounding": ("rounding-as-floor", lambda x: (x * 4).round() + x.trunc() + x.sign() + torch.div(x, 2, rounding_mode="floor"), (X3,), ()),
    "remainders": ("rounding-as-floor", lambda x: torch.remainder(x, 0.7) + torch.fmod(x, 1.3) + x.frac(), (X3,), ()),
    "angles": ("trigonometry-as-polynomials", lambda x: torch.atan2(x, x.flip(1)) + x.atan() + x.tanh().asin(), (X3,), ()),
    "hyperbolic functions": ("trigonometry-as-polynomials", lambda x: x.sinh() + x.cosh() + x.asinh(), (X3,), ()),
    "logarithms": ("logarithms-as-log", lambda x: x.abs().log1p() + (x.abs() + 1).log2() + x.expm1() + x.exp2(), (X3,), ()),
    "activations": ("activations-as-arithmetic", lambda x: F.mish(x) + F.logsigmoid(x) + F.selu(x) + F.celu(x, 2.0), (X3,), ()),
    "shrinks": ("activations-as-arithmetic", lambda x: F.hardshrink(x) + F.softshrink(x) + F.threshold(x, 0.1, 2.0), (X3,), ()),
    "softplus with beta": ("activations-as-arithmetic", lambda x: F.softplus(x, beta=2.0), (X3,), ()),
    "weighted mean of two": ("activations-as-arithmetic", lambda x: torch.lerp(x, x.flip(1), 0.3) + torch.clamp(x, x * 0 - 1, x.flip(1)), (X3,), ()),
    "cubes and roots": ("power-as-products", lambda x: x**3 + (x.abs() + 1) ** 0.3 + x.erf(), (X3,), ()),
    "patches": ("gather-as-matmul", lambda x: F.unfold(x, 2), (X4,), ()),
    "overlapping windows": ("unfold-as-conv", lambda x: (x * 2).unfold(2, 3, 1).unfold(3, 2, 1), (X4,), ()),
    "patches put back": ("unfold-as-conv", lambda x: F.fold(F.unfold(x, 2, stride=2).relu(), (4, 4), 2, stride=2), (X4[..., :4, :],), ()),
    "flipped": ("gather-as-matmul", lambda x: (x * 2).flip(1), (X4,), ()),
    "reflected": ("gather-as-matmul", lambda x: F.pad(x * 2, (200, 200), mode="reflect"), (torch.randn(1, 2, 1000),), ()),
    "mask looked up": ("booleans-as-float", lambda x, m: x * (m.bool()[torch.zeros(1, dtype=torch.long), torch.arange(4)] & (x[0] > 0)), (X3, torch.tensor([[1, 0, 1, 1]])), ()),
    "products with integers": ("booleans-as-float", lambda x, w: (x * w + (x * 3).long()[:, :1]) / (w + 1), (X3,), (torch.arange(4),)),
    "a mask as integers": ("booleans-as-float", lambda x: x * (x * 3).int().unsqueeze(0).float() + (x.long() == 1), (X3,), ()),
    "spectrum": ("complex-as-pairs", lambda x, w: torch.stft(x, 32, 8, 24, w, return_complex=True).abs(), (torch.randn(2, 100),), (torch.hann_window(24),)),
    "spectrum, normalized, both parts": ("complex-as-pairs", lambda x: torch.view_as_real(torch.stft(x, 16, normalized=True, center=False, return_complex=True)[:, 1:] * 2), (torch.randn(1, 60),), ()),
    "transform over two axes": ("complex-as-pairs", lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1, norm="ortho").real, (X3,), ()),
    "transform of all axes": ("complex-as-pairs", lambda x: torch.fft.fftn(x, dim=(1, 2)).abs(), (X3,), ()),
    "filtered in frequency": ("complex-as-pairs", lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(w), n=5), (torch.randn(2, 6, 5),), (torch.randn(6, 3, 2),)),
    "rotary embedding": ("complex-as-pairs", lambda x, r: torch.view_as_real(torch.view_as_complex(x.reshape(2, 6, 2, 2)) * torch.view_as_complex(r)), (X3,), (torch.randn(6, 2, 2),)),
    "doubled": ("repeat-by-broadcasting", lambda x: (lambda y: torch.cat([y, y], 1))(x * 2), (X3,), ()),
    "stretched and returned": ("repeat-by-broadcasting", lambda x: torch.cat([(x[:, :1] * 2).expand(2, 6, 4), x], 2), (X3,), ()),
    "where": ("booleans-as-float", lambda x: torch.where(x > 0.3, x * 2, -1.0), (X3,), ()),
    "masked by a comparison": ("booleans-as-float", lambda x, y: x.masked_fill((x <= y) & ~(y == 0), 7.0), (X3, X3.round()), ()),
    "mask from integers": ("booleans-as-float", lambda x, m: x * (m[:, None, :] != 0).expand(2, 6, 4).float(), (X3, (torch.rand(2, 4) > 0.5).long()), ()),
    "scores masked by -inf": ("booleans-as-float", lambda q, m: ((q @ q.mT) / 3).masked_fill(m[:, None, None] == 0, -torch.inf).softmax(-1), (Q, torch.tensor([[1, 1, 0, 1, 0]] * 2)), ()),
    "any and all": ("booleans-as-float", lambda x: x * (x > 0).any(1, keepdim=True) + (x < 2).all(-1, keepdim=True).float(), (X3,), ()),
    "hard sigmoid": ("hardsigmoid-decomposed", lambda x: F.hardsigmoid(x * 4), (X4,), ()),
    "elu": ("elu-decomposed", lambda x: F.elu(x * 3, 2.0), (X3,), ()),
    "elu, plain": ("elu-decomposed", lambda x: F.elu(x), (X4,), ()),
    "gelu, tanh": ("gelu-tanh-decomposed", lambda x: F.gelu(x * 3, approximate="tanh"), (X3,), ()),
    "distance": ("distances-as-norms", lambda x, y: torch.dist(x, y, 3), (X3, X3 + 1), ()),
    "similarity": ("distances-as-norms", lambda x: F.cosine_similarity((x * 2).flatten(1), (x + 1).flatten(1)), (X3,), ()),
    "pairwise distance": ("distances-as-norms", lambda x: F.pairwise_distance((x * 2).flatten(1), (x + 1).flatten(1)), (X3,), ()),
    "all distances": ("distances-as-norms", lambda x: torch.cdist(x * 2, x + 1), (X3,), ()),
    "product of all": ("products-by-halves", lambda x: torch.prod(x[0, 0] + 2) * x, (X3,), ()),
    "largest magnitude": ("vector-norm-decomposed", lambda x: x / torch.linalg.vector_norm(x, torch.inf), (X3,), ()),
    "dot product": ("matmul-as-bmm", lambda x: torch.dot(x[0, 0], x[1, 1]) * x, (X3,), ()),
    "matrices by vectors": ("matmul-as-bmm", lambda x: x[0, 0] @ x[0].mT + x @ x[1, 1] + torch.mv(x[0], x[0, 1]), (X3,), ()),
    "sum of everything": ("sum-as-matmul", lambda x: x / (1 + (x * x).sum()), (X3,), ()),
    "norm of everything": ("sum-as-matmul", lambda x: x / torch.linalg.vector_norm(x), (X3,), ()),
    "mean of everything, shaped": ("scalars-as-one-element", lambda x: (x * 2).mean().exp().reshape(1, 1, 1) + x, (X3,), ()),
    "arithmetic of scalars": ("scalars-as-one-element", lambda x, f: (x.mean() + f.exp()) * x + f - x[0, 0, 1], (X3,), (torch.tensor(0.3),)),
    "a scalar returned": ("scalars-as-one-element", lambda x: (x.mean() * 2 - 1, x.amax()), (X3,), ()),
    "hypot": ("hypot-as-sqrt", lambda x, y: torch.hypot(x, y), (X3, X3[:, :1]), ()),
    "fmax": ("fmax-as-maximum", lambda x, y: torch.fmax(x, torch.where(y > 0, y, torch.nan)), (X3, X3 + 1), ()),
    "fmin of integers": ("fmax-as-maximum", lambda x: torch.fmin((x * 9).int(), (x - 1).int()), (X3,), ()),
    "strided slice": ("strided-slice-as-reshape", lambda x: x[:, 1::2, :, ::2], (X4,), ()),
    "nearest": ("upsample-nearest-as-cat", lambda x: F.interpolate(x, scale_factor=(2, 3)), (X4,), ()),
    "means, one": ("mean-keepdim", lambda x: x.mean(-1), (X4,), ()),
    "numbers": ("scalar-as-constant", lambda x: (x + 2) * 0.5 - 1, (X3,), ()),
    "sums": ("merge-constant-adds", lambda x, a, b: (x * 2 + a) + b, (X3,), (torch.randn(4), torch.randn(6, 4))),
    "softmax of a convolution": ("softmax-in-3d", lambda x, w: F.conv2d(x, w).softmax(-1), (X4,), (torch.randn(6, 6, 1, 1),)),
    "sum over tokens": ("sum-as-matmul", lambda x: x.sum(1), (X3,), ()),
    "sum over several": ("sum-as-matmul", lambda x: x.sum((0, 2), keepdim=True), (X4,), ()),
    "normalized": ("sum-as-matmul", lambda x: F.normalize(x, dim=-1), (X3,), ()),
    "stretched": ("expand-by-broadcasting", lambda x, y: x * (y + 1).expand(2, 6, 4), (X3, X3[:, :1]), ()),
    "division": ("scalar-as-constant", lambda x: x / 3, (X3,), ()),
    "a number minus x": ("scalar-as-constant", lambda x: 1 - x, (X3,), ()),
    "a product with a whole number inside": ("whole-numbers-as-constants", lambda x, w: torch.addcmul(x, x, w), (X3,), (torch.randn(4),)),
    "rsub": ("scalar-as-constant", lambda x, w: torch.rsub(x, w) + 2.5 - x, (X3,), (torch.randn(4),)),
}  # fmt: skip


def forms(forward: Any, inputs: Any, tensors: Any) -> Any:
    program = ingot.capture(Wrap(forward, *tensors).eval(), inputs)
    return program, rewrite_for(program, find_target("xnnpack"), Recipe())


@pytest.mark.parametrize("name", CASES)
def test_same_numbers(name: str) -> None:
    rule, forward, inputs, tensors = CASES[name]
    program, legal = forms(forward, inputs, tensors)
    assert any(r.startswith(rule) for r in legal.rewrites), legal.rewrites
    for _ in range(3):
        fresh = [torch.randn_like(x) if x.dtype.is_floating_point else x for x in inputs]
        torch.testing.assert_close(legal.program.module(*fresh), program.module(*fresh), rtol=1e-4, atol=1e-5)


LEFT_ALONE = {
    "whole and broken exponents": (lambda x: (x * 2) ** torch.tensor([2.0, 3.0, 0.5, 1.0]).sqrt().ceil(), (X3,)),
    "rows beside infinite ones": (
        lambda x, i: torch.where(x > 0, x * 2, -torch.inf)[torch.arange(2), i].exp(),
        (X3, torch.tensor([3, 1])),
    ),
    "an index that floats decide": (lambda x: (x * 2)[torch.arange(2), (x.mean((1, 2)) > 0).long()], (X3,)),
    "step in a slice assignment": (lambda x: torch.slice_scatter(torch.zeros(2, 6, 4), x[:, :3], 1, 0, 6, 2), (X3,)),
    "rsub with a factor": (lambda x: torch.rsub(x, 2, alpha=3), (X3,)),
    "average of what is inside": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (X4,)),
    "gelu, erf": (lambda x: F.gelu(x * 3), (X3,)),
    "a logarithm behind a mask": (lambda x: torch.where(x > 0, x.log(), 0.0), (X3,)),
    "two integers compared": (
        lambda x, i, j: torch.where(i < j, x, -x),
        (X3, torch.arange(4), torch.tensor([3, 0, 2, 9])),
    ),
    "nearest by a fraction": (lambda x: F.interpolate(x, size=(7, 6)), (X4,)),
    "a strided slice that stops early": (lambda x: x[:, 0:3:2], (X4,)),
    "softmax of what was just reshaped": (lambda x: (x.reshape(2, 2, 3, 4) * 2).softmax(-1), (X3,)),
    "a sum that would grow": (lambda x: (x + torch.ones(4)) + torch.ones(6, 1), (X3,)),
    "integers": (lambda x: x + 1, (torch.arange(4),)),
    "broadcast batch": (lambda x, y: x @ y, (torch.randn(2, 1, 3, 4), torch.randn(1, 5, 4, 3))),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_does_not_match_is_still_right(name: str) -> None:
    forward, inputs = LEFT_ALONE[name]
    _, legal = forms(forward, inputs, ())
    torch.testing.assert_close(legal.program.module(*inputs)[0], forward(*inputs))


def test_rounding_to_hundreds_is_no_constant() -> None:
    """It makes zeros of the small values of a probe."""
    x = torch.tensor([144.4, 155.5, -166.6, 20.0])
    program = ingot.capture(Wrap(lambda x: torch.round(x, decimals=-2)), (x,))
    torch.testing.assert_close(program.module(x)[0], torch.tensor([100.0, 200.0, -200.0, 0.0]))


def test_the_replacement_of_an_op_that_runs_nowhere_is_kept_though_it_fragments() -> None:
    _, legal = forms(lambda x: torch.round(x, decimals=1), (X3,), ())
    assert any("1 more delegate boundary" in r for r in legal.rewrites), legal.rewrites
    assert not any("not used" in r for r in legal.rewrites)


def test_a_convolution_behind_a_reshape_keeps_its_statistics() -> None:
    """So it is planned in int8: without them it would stay in float."""
    net = nn.Sequential(nn.Conv3d(4, 3, 3), nn.ReLU())
    plan = ingot.plan(program := ingot.capture(net, (X5,)), ingot.record(program, [(X5,)]), "xnnpack")
    weights = [d.qparams for d in plan.decisions if "conv" in d.point.node and d.point.operand == 1]
    assert [q.dtype if q else "float" for q in weights] == ["int8"]


def test_a_moved_value_without_statistics_is_not_quantized() -> None:
    """The first product of a resampling has none, and it is permuted before the second reads it."""
    x, net = torch.randn(1, 2, 5, 6) * 10, nn.Upsample(scale_factor=2, mode="bicubic")
    casting = ingot.cast(net, (x,), target="xnnpack", calibration=[(x,)])
    assert len(casting.delegates) == 1
    assert casting.check is not None
    assert casting.check.outputs[0].sqnr_db > 30


def test_a_rule_can_be_switched_off_by_name() -> None:
    program = ingot.capture(nn.LayerNorm(4), (X3,))
    without = rewrite_for(program, find_target("xnnpack"), Recipe(disabled_rewrites=("layer-norm-as-matmul",)))
    assert not without.rewrites
    with pytest.raises(ingot.InputError, match="did you mean 'layer-norm-as-matmul'"):
        rewrite_for(program, find_target("xnnpack"), Recipe(disabled_rewrites=("layer-norm-as-matmu",)))


@pytest.mark.parametrize("target", ["xnnpack", "vulkan", "ethos-u55-128", "vgf"])
def test_rule_names_are_kebab_case_and_unique(target: str) -> None:
    names = [rule.name for rule in find_target(target).lowering.rules()]
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in names), names
    assert len(names) == len(set(names))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)))


def test_the_plan_says_where_rules_were_used_and_what_they_saved() -> None:
    program = ingot.capture(Norms(), (X3,))
    plan = ingot.plan(program, ingot.record(program, [(X3,)]), "xnnpack")
    lines = [r for r in plan.rewrites if r.startswith("layer-norm-as-matmul")]
    assert [line.split(" (")[1].split(":")[0] for line in lines[:2]] == ["test_rewrite.py"] * 2
    assert lines[2] == "layer-norm-as-matmul: 2 fewer host ops, 1 fewer delegate boundary"


class WithRule(XnnpackLowering):
    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def rules(self) -> Any:
        return (self.rule, *super().rules())


def test_a_rule_that_increases_fragmentation_is_not_used() -> None:
    def worse(node: Any) -> Any:
        if node.target is not torch.ops.aten.relu.default:
            return None
        return call(node, torch.ops.aten.atan.default, call(node, torch.ops.aten.tan.default, node.args[0]))

    target = replace(find_target("xnnpack"), lowering=WithRule(Rule("relu-by-tangents", worse)))
    x = torch.rand(2, 6, 4)  # where the two agree
    program = ingot.capture(Wrap(lambda y: F.layer_norm(F.relu(y), (4,))).eval(), (x,))
    legal = rewrite_for(program, target, Recipe(disabled_rewrites=("trigonometry-as-polynomials",)))
    assert "relu-by-tangents: not used, it would increase fragmentation" in legal.rewrites
    assert "layer-norm-as-matmul: 1 fewer host op, 1 fewer delegate boundary" in legal.rewrites
    assert any(n.target is torch.ops.aten.relu.default for n in calls(legal.program.module))


@pytest.mark.parametrize("leaves", ["the graph as it was", "a broken graph"])
def test_a_rule_that_dies_is_not_used(leaves: str) -> None:
    def dies(node: Any) -> Any:
        if node.target is torch.ops.aten.relu.default:
            if leaves == "the graph as it was":
                raise ValueError("not my relu")
            with node.graph.inserting_before(node):
                return node.graph.get_attr("missing")
        return None

    target = replace(find_target("xnnpack"), lowering=WithRule(Rule("deadly", dies)))
    program = ingot.capture(Wrap(lambda y: F.layer_norm(F.relu(y), (4,))).eval(), (torch.rand(2, 6, 4),))
    legal = rewrite_for(program, target, Recipe())
    assert any(r.startswith("deadly: not used, it fails: ") for r in legal.rewrites)
    assert any(n.target is torch.ops.aten.relu.default for n in calls(legal.program.module))
    assert any(r.startswith("layer-norm-as-matmul") for r in legal.rewrites), "the other rules are"


def test_layers_share_one_bias_from_booleans() -> None:
    def forward(q: Any, m: Any) -> Any:
        return F.scaled_dot_product_attention(F.scaled_dot_product_attention(q, q, q, m), q, q, m)

    _, legal = forms(forward, (Q, MASK), ())
    casts = [n for n in calls(legal.program.module) if n.target is torch.ops.aten.to.dtype]
    assert len(casts) == 2


@given(st.integers(0, 10**6))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_shorter_permute_chain_gives_the_same_order(number: int) -> None:
    """And it never has more ops than before."""
    graph, x, want = a_chain(random.Random(number))
    last: Any = graph.output_node().args[0]
    before, new = len(graph.nodes), permute_chains._rewrite(last)
    if new is not None:
        last.replace_all_uses_with(new)
        graph.eliminate_dead_code()
        assert len(graph.nodes) < before
    assert torch.equal(torch.fx.Interpreter(torch.nn.Module(), graph=graph).run(x), want)


def a_chain(draw: random.Random) -> tuple[torch.fx.Graph, torch.Tensor, torch.Tensor]:
    graph, shape = torch.fx.Graph(), a_shape(draw, 48)
    x = value = torch.arange(48.0).reshape(shape)
    node = graph.placeholder("x")
    node.meta["val"] = value
    for _ in range(draw.randint(2, 5)):
        op, argument = draw.choice(((aten.reshape.default, a_shape(draw, 48)), (aten.permute.default, draw.sample(range(value.dim()), value.dim()))))  # fmt: skip
        node, value = graph.call_function(op, (node, argument)), op(value, argument)
        node.meta["val"] = value
    graph.output(node)
    return graph, x, value


def a_shape(draw: random.Random, elements: int) -> list[int]:
    """A product of random factors, some of them one."""
    shape = [1] * draw.choice((0, 0, 1, 2))
    while elements > 1:
        shape.append(draw.choice([d for d in range(2, elements + 1) if elements % d == 0]))
        elements //= shape[-1]
    draw.shuffle(shape)
    return shape


def test_a_program_that_is_dropped_is_freed() -> None:
    """Rewritten programs are cached as long as their program lives: the cache does not keep weights alive."""
    program = ingot.capture(torch.nn.Linear(4, 4).eval(), (torch.zeros(1, 4),))
    target = find_target("xnnpack")
    assert rewrite_for(program, target, Recipe()) is rewrite_for(program, target, Recipe())
    weight = weakref.ref(next(program.module.parameters()))
    del program
    gc.collect()
    assert weight() is None


class Reused(nn.Module):
    """The name of a product with a huge number is free again when the repetition is made."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.where(x < y, x, y * 0.5)
        z = torch.nn.functional.interpolate(z, size=(3, 5), mode="bicubic", align_corners=True)
        return torch.cat([z, z], -1)


def test_a_value_made_by_a_rewrite_has_a_name_of_its_own() -> None:
    """It had the statistics of another one: a scale of 1e36."""
    made = [torch.Generator().manual_seed(i) for i in range(4)]
    batches = [(torch.randn(2, 2, 2, 2, generator=g), torch.rand(2, 1, generator=g) * 1e-3) for g in made]
    program = ingot.capture(Reused().eval(), batches[0])
    rewritten = rewrite_for(program, find_target("xnnpack"), Recipe()).program
    names = [value_name(n) for n in rewritten.module.graph.nodes if n.op == "call_function"]
    assert len(set(names)) == len(names)
    plan = ingot.plan(program, ingot.record(program, batches), "xnnpack", recipe={"range": "mse"})
    assert max(d.qparams.scale for d in plan if d.qparams and isinstance(d.qparams.scale, float)) < 1
