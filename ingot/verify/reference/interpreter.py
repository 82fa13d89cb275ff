"""Evaluate the quantized graph in double precision: integer arithmetic without the rounding errors of float32.

In float32 a sum of products near a tie may round to either side, and in a deep net one such step becomes noise
everywhere. A backend multiplies integers. Doubles represent these products and sums exactly, except for biases, whose
scale is float32. Ties round as on the backend: half to even, or half up. LUT functions are interpolated as on the
backend, and multipliers have the bits that the plan gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.targets.base import Target
from ingot.verify.reference.lut import lookup_tables
from ingot.verify.reference.multipliers import exact_scales, quantize_of


def evaluate(module: GraphModule, batches: Sequence[tuple[Any, ...]], target: Target) -> list[Any]:
    """The outputs of each batch, converted back to float32."""
    interpreter = DoubleInterpreter(module, target)
    with torch.no_grad():
        results = [interpreter.run(*batch) for batch in batches]
    return [torch.utils._pytree.tree_map_only(Tensor, narrow, r) for r in results]


class DoubleInterpreter(Interpreter):
    """Converts floats to double. Q/DQ ops take float32 only, so they are computed here."""

    def __init__(self, module: GraphModule, target: Target) -> None:
        super().__init__(module)
        self.rounds_half_up = target.numerics.rounding == "half_up"
        self.tables, self.scales = lookup_tables(module, target), exact_scales(module, target)

    def run_node(self, n: Node) -> Any:
        if n.target is torch.ops.aten._assert_tensor_metadata.default:  # torch.export says: this is float32
            return None
        qdq = QDQ_IN_DOUBLE.get(str(n.target)) if n.op == "call_function" else None
        if qdq is not None:
            return self._run_qdq(n, qdq)
        if n.op == "call_function" and getattr(n.target, "namespace", "") == RUNTIME_QPARAMS:
            return torch.utils._pytree.tree_map_only(Tensor, _widen, self._run_in_float32(n))
        if n in self.tables:
            return self.tables[n](self.fetch_args_kwargs_from_env(n)[0][0])
        return torch.utils._pytree.tree_map_only(Tensor, _widen, super().run_node(n))

    def _run_in_float32(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = torch.utils._pytree.tree_map_only(Tensor, narrow, (args, kwargs))
        return n.target(*args, **kwargs)  # type: ignore[operator]

    def _run_qdq(self, n: Node, qdq: Callable[..., Tensor]) -> Tensor:
        x, scale, *rest = self.fetch_args_kwargs_from_env(n)[0]
        if qdq is not _quantize:
            made = qdq(x, self.scales.get(n, scale), *rest)
            return _widen(made.float()) if _only_float_reads(n) else made
        if n.all_input_nodes[0].op == "placeholder":
            return _quantize_input(x, scale, *rest)
        return (_quantize_half_up if self.rounds_half_up else _quantize)(x, scale, *rest)


def _only_float_reads(dequantize: Node) -> bool:
    """A value that leaves the integers: the dequantize kernel rounds it to float32, and a floor can tell."""
    computed = dequantize.all_input_nodes[0].op != "get_attr"
    return computed and all(quantize_of(user) is None for user in dequantize.users)


# The namespace of the ops that choose qparams at run time: from float32 values, as kernels do.
RUNTIME_QPARAMS = "torchao"
TIE = 1e-9  # of a step: rounding error of a double at a tie


def _widen(x: Tensor) -> Tensor:
    return x.double() if x.dtype.is_floating_point else x


def narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype is torch.float64 else x


def _quantize(x: Tensor, scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return ((x.double() / scale).round() + zero).clamp(low, high).to(dtype)


def _quantize_input(x: Tensor, *qparams: Any) -> Tensor:
    """A program input is quantized before the delegate, by the op itself."""
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(narrow(x), *qparams)


def _quantize_half_up(x: Tensor, scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return ((x.double() / scale + 0.5 + TIE).floor() + zero).clamp(low, high).to(dtype)


def _dequantize(q: Tensor, scale: float, zero: int, *_: Any) -> Tensor:
    return (q.double() - zero) * scale


def _dequantize_channels(q: Tensor, scales: Tensor, zeros: Tensor | None, axis: int, *_: Any) -> Tensor:
    shape = [-1 if i == axis else 1 for i in range(q.dim())]
    zero = 0.0 if zeros is None else zeros.double().reshape(shape)
    return (q.double() - zero) * scales.double().reshape(shape)


QDQ_IN_DOUBLE: dict[str, Callable[..., Tensor]] = {  # the three Q/DQ ops that PT2E convert emits
    "quantized_decomposed.quantize_per_tensor.default": _quantize,
    "quantized_decomposed.dequantize_per_tensor.default": _dequantize,
    "quantized_decomposed.dequantize_per_channel.default": _dequantize_channels,
}
