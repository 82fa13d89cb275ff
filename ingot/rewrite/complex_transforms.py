"""Fourier transforms of fixed length as products with constant matrices of cosines and sines.

stft(x, window) -> conv1d(x, windowed cosines), conv1d(x, windowed sines); fft, rfft, irfft -> linear with the basis
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, constant_of, value_of
from ingot.rewrite.rule import in_float

aten = torch.ops.aten
REASON = "part of a spectrum: it needs float"
Pair = tuple[Node, Node]


def spectral_op(at: Node, op: Any, *args: Any) -> Node:
    return in_float(at, REASON, op, *args)


def spectral_constant(at: Node, tensor: torch.Tensor, name: str) -> Node:
    return add_constant(at.graph.owning_module, tensor.float().contiguous(), name, at)  # type: ignore[arg-type]


def short_time_transform(node: Node) -> Pair | None:
    """A convolution with the windowed basis of the transform, a step for each frame."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    x, size = given["self"], given["n_fft"]
    window = _window(given, size)
    if window is None or given.get("center", False) or value_of(x).dtype != torch.float32:
        return None
    bins = size // 2 + 1 if given.get("onesided") in (None, True) else size
    scale = 1 / math.sqrt(size) if given.get("normalized") else 1.0
    basis = [m * window * scale for m in _basis(bins, size)]
    step = given.get("hop_length") or size // 4
    *lead, samples = value_of(x).shape
    flat = spectral_op(node, aten.reshape.default, x, [math.prod(lead), 1, samples])
    shape = list(value_of(node).shape)
    r, i = (_frames(node, flat, kernel, step, shape) for kernel in basis)
    return r, i


def _window(given: dict[str, Any], size: int) -> torch.Tensor | None:
    width = given.get("win_length") or size
    node = given.get("window")
    window = constant_of(node) if node is not None else torch.ones(width)
    if window is None:
        return None
    start = (size - width) // 2
    return torch.nn.functional.pad(window.double(), (start, size - width - start))


def _basis(bins: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = 2 * math.pi * torch.arange(bins, dtype=torch.float64)[:, None] * torch.arange(size) / size
    return angles.cos(), -angles.sin()


def _frames(node: Node, x: Node, kernel: torch.Tensor, step: int, shape: list[int]) -> Node:
    weight = spectral_constant(node, kernel[:, None, :], f"{node.name}_basis")
    made = spectral_op(node, aten.conv1d.default, x, weight, None, [step])
    return made if list(value_of(made).shape) == shape else spectral_op(node, aten.reshape.default, made, shape)


@dataclass(frozen=True)
class Transform:
    """A Fourier transform: its operand, along which dimensions, how scaled, and whether half of the bins is enough."""

    x: Any
    dims: list[int]
    norm: Any
    half: bool = False


def forward_transform(node: Node) -> Transform | None:
    """fft, fftn, rfft without padding, and what they decompose to."""
    given: tuple[Any, ...] = (*node.args, None, None, None)
    x, rank = node.args[0], value_of(node.args[0]).dim()  # type: ignore[arg-type]
    name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if name == "_fft_r2c":
        return Transform(x, [d % rank for d in given[1]], given[2], bool(given[3]))
    if name == "_fft_c2c":
        return Transform(x, [d % rank for d in given[1]], given[2]) if given[3] else None
    if given[1] is not None:  # another size: padded or cut
        return None
    if name == "fft_fftn":
        return Transform(x, [d % rank for d in (given[2] or range(rank))], given[3])
    return Transform(x, [(-1 if given[2] is None else given[2]) % rank], given[3], name == "fft_rfft")


def transformed(node: Node, found: Transform, r: Node, i: Node | None) -> Pair | None:
    """One dimension after the other; of a real value both parts are sums of its elements alone."""
    for dim in reversed(found.dims):  # the last one first: rfft halves it while the value is real
        size = value_of(r).shape[dim]
        scale = _scale(found.norm, size)
        if scale is None:
            return None
        bins = size // 2 + 1 if found.half and dim == found.dims[-1] else size
        cosines, sines = (spectral_constant(node, m * scale, "dft") for m in _basis(bins, size))
        rc, rs = (_along(node, r, dim, m) for m in (cosines, sines))
        if i is None:
            r, i = rc, rs
            continue
        ic, is_ = (_along(node, i, dim, m) for m in (cosines, sines))
        r, i = spectral_op(node, aten.sub.Tensor, rc, is_), spectral_op(node, aten.add.Tensor, rs, ic)
    return None if i is None else (r, i)


def _along(node: Node, x: Node, dim: int, matrix: Node) -> Node:
    rank = value_of(x).dim()
    order = [*(d for d in range(rank) if d != dim), dim]
    turned = x if dim == rank - 1 else spectral_op(node, aten.permute.default, x, order)
    made = spectral_op(node, aten.linear.default, turned, matrix)
    back = [order.index(d) for d in range(rank)]
    return made if dim == rank - 1 else spectral_op(node, aten.permute.default, made, back)


def _scale(norm: Any, size: int) -> float | None:
    """By torch's names and numbers: none, by the root of the size, by the size."""
    names = {None: 0, "backward": 0, "ortho": 1, "forward": 2}
    return {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}.get(names.get(norm, norm))


def inverse_real_transform(node: Node, r: Node, i: Node) -> Node | None:
    """irfft: a sum of cosines and sines, each frequency counted twice but the first and the middle one."""
    size, scale = _inverse_size(node, value_of(r))
    if scale is None:
        return None
    bins, times = torch.arange(value_of(r).shape[-1]), torch.arange(size)
    angles = 2 * math.pi * times[:, None].double() * bins / size
    weight = torch.where((bins == 0) | (2 * bins == size), 1.0, 2.0).double() * scale
    parts = [(r, angles.cos() * weight), (i, -angles.sin() * weight)]
    sums = [spectral_op(node, aten.linear.default, x, spectral_constant(node, m, "inverse_dft")) for x, m in parts]
    return spectral_op(node, aten.add.Tensor, *sums)


def _inverse_size(node: Node, val: torch.Tensor) -> tuple[int, float | None]:
    """Of the result, and its scale: None if it is not along the last dimension."""
    given: tuple[Any, ...] = (*node.args, None, None, None)
    if node.target.overloadpacket.__name__ == "_fft_c2r":  # type: ignore[union-attr]
        dims, norm, size = given[1:4]
    else:
        size, dims = given[1] or 2 * (val.shape[-1] - 1), [-1 if given[2] is None else given[2]]
        norm = {None: 2, "backward": 2, "forward": 0, "ortho": 1}.get(given[3])
    fits = [d % val.dim() for d in dims] == [val.dim() - 1] and size // 2 + 1 == val.shape[-1]
    return size, _scale(norm, size) if fits and norm is not None else None
