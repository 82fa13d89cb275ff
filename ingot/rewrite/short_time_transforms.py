"""stft(x, window) -> conv1d(x, windowed cosines), conv1d(x, windowed sines), a step for each frame
istft(z, window) -> (conv_transpose1d(real, windowed cosines) + conv_transpose1d(imag, windowed sines)) / sum of windows
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, constant_of, value_of
from ingot.rewrite.complex_transforms import Pair, inverse_waves, spectral_constant, spectral_op, waves

aten = torch.ops.aten


def short_time_transform(node: Node) -> Pair | None:
    given, x = _arguments(node), node.args[0]
    size = given["n_fft"]
    window = _window(given, size)
    if window is None or given.get("center", False) or value_of(x).dtype != torch.float32:  # type: ignore[arg-type]
        return None
    bins = size // 2 + 1 if given.get("onesided") in (None, True) else size
    cosines, sines = waves(bins, size, size)
    basis = [m * window * _scale(given, 1.0, size) for m in (cosines, -sines)]
    *lead, samples = value_of(x).shape  # type: ignore[arg-type]
    flat = spectral_op(node, aten.reshape.default, x, [math.prod(lead), 1, samples])
    shape = list(value_of(node).shape)
    r, i = (_frames(node, flat, kernel, _step(given), shape) for kernel in basis)
    return r, i


def inverse_short_time_transform(node: Node, r: Node, i: Node) -> Node | None:
    """Frames are added where they overlap, and divided by the sum of the squared windows there."""
    given = _arguments(node)
    size, step, window = given["n_fft"], _step(given), _window(given, given["n_fft"])
    if window is None or given.get("onesided") is False or value_of(node).dtype != torch.float32:
        return None
    *lead, bins, frames = value_of(r).shape
    basis = [m.mT * window * _scale(given, 1 / size, size) for m in inverse_waves(bins, size)]
    parts = [_overlapped(node, x, [math.prod(lead), bins, frames], m, step) for x, m in zip((r, i), basis, strict=True)]
    weight = _window_sum(window.square(), frames, step)
    start, length = size // 2 if given.get("center", True) else 0, value_of(node).shape[-1]
    weight = weight[start : start + length]
    if weight.numel() < length or not bool((weight > 1e-11).all()):  # padded, or what torch refuses
        return None
    summed = call(node, aten.slice.Tensor, spectral_op(node, aten.add.Tensor, *parts), 2, start, start + length)
    made = spectral_op(node, aten.mul.Tensor, summed, spectral_constant(node, 1 / weight, f"{node.name}_weight"))
    return spectral_op(node, aten.reshape.default, made, list(value_of(node).shape))


def _arguments(node: Node) -> dict[str, Any]:
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _step(given: dict[str, Any]) -> int:
    return given.get("hop_length") or (given.get("win_length") or given["n_fft"]) // 4


def _scale(given: dict[str, Any], usual: float, size: int) -> float:
    return 1 / math.sqrt(size) if given.get("normalized") else usual


def _window(given: dict[str, Any], size: int) -> torch.Tensor | None:
    width = given.get("win_length") or size
    node = given.get("window")
    window = constant_of(node) if node is not None else torch.ones(width)
    if window is None:
        return None
    start = (size - width) // 2
    return torch.nn.functional.pad(window.detach().double(), (start, size - width - start))


def _frames(node: Node, x: Node, kernel: torch.Tensor, step: int, shape: list[int]) -> Node:
    weight = spectral_constant(node, kernel[:, None, :], f"{node.name}_basis")
    made = spectral_op(node, aten.conv1d.default, x, weight, None, [step])
    return made if list(value_of(made).shape) == shape else spectral_op(node, aten.reshape.default, made, shape)


def _overlapped(node: Node, x: Node, shape: list[int], kernel: torch.Tensor, step: int) -> Node:
    flat = x if list(value_of(x).shape) == shape else spectral_op(node, aten.reshape.default, x, shape)
    weight = spectral_constant(node, kernel[:, None, :], f"{node.name}_basis")
    return spectral_op(node, aten.conv_transpose1d.default, flat, weight, None, [step])


def _window_sum(window: torch.Tensor, frames: int, step: int) -> torch.Tensor:
    ones = torch.ones(1, 1, frames, dtype=torch.float64)
    return torch.nn.functional.conv_transpose1d(ones, window[None, None], stride=step).reshape(-1)
