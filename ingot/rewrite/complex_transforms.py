"""Fourier transforms of fixed length as products with constant matrices of cosines and sines, one dimension at a time

fft, rfft, irfft, fft2, irfftn … -> linear with the basis; another length cuts the basis: zeros that pad add nothing
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, value_of
from ingot.rewrite.rule import in_float

aten = torch.ops.aten
REASON = "part of a spectrum: it needs float"
Pair = tuple[Node, Node]
_NAMED = {None: 0, "backward": 0, "ortho": 1, "forward": 2}  # what the forward transform is divided by
_INVERSE = {None: 2, "backward": 2, "ortho": 1, "forward": 0}


def spectral_op(at: Node, op: Any, *args: Any) -> Node:
    return in_float(at, REASON, op, *args)


def spectral_constant(at: Node, tensor: torch.Tensor, name: str) -> Node:
    return add_constant(at.graph.owning_module, tensor.float().contiguous(), name, at)  # type: ignore[arg-type]


def waves(bins: int, size: int, used: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines: bins x the first `used` of `size` steps."""
    angles = 2 * math.pi * torch.arange(bins, dtype=torch.float64)[:, None] * torch.arange(used) / size
    return angles.cos(), angles.sin()


@dataclass(frozen=True)
class Transform:
    """A Fourier transform: its operand, along which dimensions, of which lengths, how scaled, in which direction.

    `half`: along the last dimension half of the bins is enough, since one side is real.
    """

    x: Any
    dims: list[int]
    sizes: Mapping[int, int]
    norm: int | None
    half: bool = False
    inverse: bool = False

    def scale(self, dim: int) -> float:
        size = self.sizes[dim]
        return {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}[self.norm or 0]


def transform_of(node: Node) -> Transform | None:
    """What the op transforms: torch's names with one, two or all dimensions, and what they decompose to."""
    name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
    found = _core_transform(node, name) if name.startswith("_fft") else _named_transform(node, name)
    return found if found is not None and found.norm is not None and found.dims else None


def _core_transform(node: Node, name: str) -> Transform:
    args: Any = node.args
    x, dims, norm, last = args
    shape = value_of(x).shape
    axes = [d % len(shape) for d in dims]
    sizes = {d: shape[d] for d in axes}
    if name == "_fft_c2r":
        return Transform(x, axes, {**sizes, axes[-1]: last}, norm, True, True)
    if name == "_fft_r2c":
        return Transform(x, axes, sizes, norm, bool(last))
    return Transform(x, axes, sizes, norm, False, not last)


def _named_transform(node: Node, name: str) -> Transform:
    args: Any = (*node.args, None, None, None)
    x, lengths, dims, norm = args[:4]
    shape = value_of(x).shape
    one, half = name[-1] not in "2n", "rfft" in name
    lengths = [lengths] if one and lengths is not None else lengths
    first = -1 if one else (-2, -1) if name.endswith("2") else range(len(shape)) if lengths is None else None
    given: Any = first if dims is None else dims
    given = range(-len(lengths), 0) if given is None else [given] if isinstance(given, int) else given
    axes, inverse = [d % len(shape) for d in given], name.startswith("fft_i")
    whole = {d: shape[d] for d in axes}
    if half and inverse and axes:
        whole[axes[-1]] = 2 * (shape[axes[-1]] - 1)
    sizes = {d: whole[d] if n in (None, -1) else n for d, n in zip(axes, lengths or [None] * len(axes), strict=True)}
    return Transform(x, axes, sizes, (_INVERSE if inverse else _NAMED).get(norm), half, inverse)


def transformed(node: Node, found: Transform, r: Node, i: Node | None) -> Pair | None:
    """One dimension after the other; of a real value both parts are sums of its elements alone."""
    for dim in reversed(found.dims):  # the last one first: rfft halves it while the value is real
        r, i = _along(node, found, dim, r, i)
    return None if i is None else (r, i)


def real_inverse(node: Node, r: Node, i: Node) -> Node | None:
    """irfft: complex along all dimensions but the last, then a sum of cosines and sines.

    Each frequency counts twice but the first and the middle one.
    """
    found = transform_of(node)
    if found is None:
        return None
    *others, last = found.dims
    pair = transformed(node, replace(found, dims=others, half=False), r, i) if others else (r, i)
    if pair is None:
        return None
    size, bins = found.sizes[last], min(found.sizes[last] // 2 + 1, value_of(r).shape[last])
    cosines, sines = inverse_waves(bins, size)
    scale = found.scale(last)
    parts = [_product(node, x, last, m * scale) for x, m in zip(pair, (cosines, sines), strict=True)]
    return spectral_op(node, aten.add.Tensor, *parts)


def inverse_waves(bins: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What real and imaginary part of half a spectrum are multiplied by: steps x bins."""
    cosines, sines = (m.mT for m in waves(bins, size, size))
    k = torch.arange(bins)
    weight = torch.where((k == 0) | (2 * k == size), 1.0, 2.0).double()
    return cosines * weight, -sines * weight


def _along(node: Node, found: Transform, dim: int, r: Node, i: Node | None) -> tuple[Node, Node]:
    size, used = found.sizes[dim], min(found.sizes[dim], value_of(r).shape[dim])
    bins = size // 2 + 1 if found.half and dim == found.dims[-1] else size
    cosines, sines = (m * found.scale(dim) for m in waves(bins, size, used))
    sines = sines if found.inverse else -sines
    rc, rs = (_product(node, r, dim, m) for m in (cosines, sines))
    if i is None:
        return rc, rs
    ic, is_ = (_product(node, i, dim, m) for m in (cosines, sines))
    return spectral_op(node, aten.sub.Tensor, rc, is_), spectral_op(node, aten.add.Tensor, rs, ic)


def _product(node: Node, x: Node, dim: int, matrix: torch.Tensor) -> Node:
    """Along one dimension, which is cut to what the matrix reads."""
    rank, used = value_of(x).dim(), matrix.shape[1]
    x = x if value_of(x).shape[dim] == used else call(node, aten.slice.Tensor, x, dim, 0, used)
    order = [*(d for d in range(rank) if d != dim), dim]
    transposed = x if dim == rank - 1 else spectral_op(node, aten.permute.default, x, order)
    made = spectral_op(node, aten.linear.default, transposed, spectral_constant(node, matrix, "dft"))
    back = [order.index(d) for d in range(rank)]
    return made if dim == rank - 1 else spectral_op(node, aten.permute.default, made, back)
