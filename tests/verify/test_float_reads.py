"""The quantized graph in double precision, where a value leaves the integers."""

from __future__ import annotations

import torch
from torch import nn

from ingot.targets.registry import find_target
from ingot.verify.reference.interpreter import evaluate

SCALE, CODE = 17.435087203979492, 285  # 285 · scale is 4968.99985, in float32 4969


class Leaves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stored = torch.ops.quantized_decomposed.quantize_per_tensor.default(x, SCALE, 0, -32768, 32767, torch.int16)
        read = torch.ops.quantized_decomposed.dequantize_per_tensor.default(
            stored, SCALE, 0, -32768, 32767, torch.int16
        )
        return torch.ops.aten.floor.default(read)


def test_a_dequantized_value_for_float_ops_is_rounded_to_float32() -> None:
    """As the kernel computes it: a floor after it can tell."""
    import executorch.exir  # noqa: F401  registers the Q/DQ ops

    x = torch.tensor([SCALE * CODE])
    module = torch.fx.symbolic_trace(Leaves())
    made = evaluate(module, [(x,)], find_target("ethos-u85-256"))[0]
    assert made.tolist() == module(x).tolist() == [4969.0]
