"""The quantized graph evaluated in double precision: what its integers say, without float32's own rounding.

In float32 a sum of products that ends near the middle between two steps may fall on either side, and in a deep net one
such step becomes noise everywhere. A backend multiplies integers; so does this, but for biases, whose scale is float32.
What is exactly between two steps goes where the backend puts it: to the even one, or up. A function that it
interpolates is interpolated here, and a factor that the plan gave few bits has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.targets.base import Target
from ingot.verify.reference.lut import lines_of
from ingot.verify.reference.multipliers import scales_meant


def evaluate(module: GraphModule, batches: Sequence[tuple[Any, ...]], target: Target) -> list[Any]:
    """The outputs for each batch, in float32 again."""
    exact = Exact(module, target)
    with torch.no_grad():
        results = [exact.run(*batch) for batch in batches]
    return [torch.utils._pytree.tree_map_only(Tensor, _narrow, r) for r in results]


class Exact(Interpreter):
    """Every float32 becomes double; a quantize or dequantize is written out, since the ops insist on float32."""

    def __init__(self, module: GraphModule, target: Target) -> None:
        super().__init__(module)
        self.rounds_half_up = target.numerics.rounding == "half_up"
        self.lines, self.scales = lines_of(module, target), scales_meant(module, target)

    def run_node(self, n: Node) -> Any:
        rounding = ROUNDINGS.get(str(n.target)) if n.op == "call_function" else None
        if rounding is not None:
            return self._rounded(n, rounding)
        if n in self.lines:
            return self.lines[n](self.fetch_args_kwargs_from_env(n)[0][0])
        return torch.utils._pytree.tree_map_only(Tensor, _widen, super().run_node(n))

    def _rounded(self, n: Node, rounding: Callable[..., Tensor]) -> Tensor:
        x, scale, *rest = self.fetch_args_kwargs_from_env(n)[0]
        if rounding is not _quantize:
            return rounding(x, self.scales.get(n, scale), *rest)
        if n.all_input_nodes[0].op == "placeholder":
            return _quantize_outside(x, scale, *rest)
        return (_quantize_up if self.rounds_half_up else _quantize)(x, scale, *rest)


TIE = 1e-9  # of a step: what double leaves of numbers that are equal


def _widen(x: Tensor) -> Tensor:
    return x.double() if x.dtype is torch.float32 else x


def _narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype is torch.float64 else x


def _quantize(x: Tensor, scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return ((x.double() / scale).round() + zero).clamp(low, high).to(dtype)


def _quantize_outside(x: Tensor, *numbers: Any) -> Tensor:
    """An input is rounded before the delegate, by the op itself."""
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(_narrow(x), *numbers)


def _quantize_up(x: Tensor, scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return ((x.double() / scale + 0.5 + TIE).floor() + zero).clamp(low, high).to(dtype)


def _dequantize(q: Tensor, scale: float, zero: int, *_: Any) -> Tensor:
    return (q.double() - zero) * scale


def _dequantize_channels(q: Tensor, scales: Tensor, zeros: Tensor | None, axis: int, *_: Any) -> Tensor:
    shape = [-1 if i == axis else 1 for i in range(q.dim())]
    zero = 0.0 if zeros is None else zeros.double().reshape(shape)
    return (q.double() - zero) * scales.double().reshape(shape)


ROUNDINGS: dict[str, Callable[..., Tensor]] = {  # the three that convert leaves in a graph
    "quantized_decomposed.quantize_per_tensor.default": _quantize,
    "quantized_decomposed.dequantize_per_tensor.default": _dequantize,
    "quantized_decomposed.dequantize_per_channel.default": _dequantize_channels,
}
