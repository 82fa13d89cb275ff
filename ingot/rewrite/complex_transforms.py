"""Fourier transforms of fixed length as products with constant matrices of cosines and sines.

stft(x, window) -> conv1d(x, windowed cosines), conv1d(x, windowed sines); rfft(x), irfft(r, i) -> linear with the basis
"""

from __future__ import annotations

import math
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


def real_transform(node: Node) -> Pair | None:
    """rfft along the last axis: two linears."""
    given: tuple[Any, ...] = node.args
    x, dims, norm, *rest = given
    size = value_of(x).shape[-1]
    scale = _scale(norm, size)
    if not _is_last(dims, x) or scale is None or value_of(x).dtype != torch.float32:
        return None
    bins = size // 2 + 1 if not rest or rest[0] else size
    cosines, sines = (m * scale for m in _basis(bins, size))
    r, i = (spectral_op(node, aten.linear.default, x, spectral_constant(node, m, "dft")) for m in (cosines, sines))
    return r, i


def _scale(norm: Any, size: int) -> float | None:
    """By torch's numbers for norms: none, by the root of the size, by the size."""
    return {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}.get(norm)


def _is_last(dims: Any, x: Any) -> bool:
    return list(dims) in ([-1], [value_of(x).dim() - 1])


def inverse_real_transform(node: Node, r: Node, i: Node) -> Node | None:
    """irfft: a sum of cosines and sines, each frequency counted twice but the first and the middle one."""
    given: tuple[Any, ...] = node.args
    _, dims, norm, size = given
    scale = _scale(norm, size)
    if not _is_last(dims, r) or scale is None:
        return None
    bins, times = torch.arange(value_of(r).shape[-1]), torch.arange(size)
    angles = 2 * math.pi * times[:, None].double() * bins / size
    weight = torch.where((bins == 0) | (2 * bins == size), 1.0, 2.0).double() * scale
    parts = [(r, angles.cos() * weight), (i, -angles.sin() * weight)]
    sums = [spectral_op(node, aten.linear.default, x, spectral_constant(node, m, "inverse_dft")) for x, m in parts]
    return spectral_op(node, aten.add.Tensor, *sums)
