"""Matmuls of two activations: the output scale is enlarged until the requantize multiplier has few enough bits.

With a weight the weight scales are adjusted instead, since nothing else reads them (`with_multiplier_bits`).
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ingot.plan.cost_model import mac_count
from ingot.plan.noise_model import elements
from ingot.plan.qparams import round_down_to_bits
from ingot.plan.solver_state import SolverState, quantized_operands


def align_multipliers(state: SolverState) -> None:
    """In graph order: the input scales of a matmul are final. In a scale group the first matmul is aligned."""
    aligned: set[object] = set()
    for node in state.precisions:
        bits = state.target.numerics.multiplier_bits.get(state.precisions[node])
        group = state.scale_groups.find((node, None)) if (node, None) in state.qparams else None
        if bits and group is not None and group not in aligned and _is_matmul(node, state):
            aligned.add(group)
            _align(node, bits, state)


def _is_matmul(node: Node, state: SolverState) -> bool:
    """Sums products of two activations: more than one MAC per element of the result."""
    return len(quantized_operands(node, state)) == 2 and mac_count(node) > elements(node)


def _align(node: Node, bits: int, state: SolverState) -> None:
    a, b, out = (state.qparams[node, i] for i in (0, 1, None))
    product = a.scale * b.scale  # type: ignore[operator]
    scale = product / round_down_to_bits(product / out.scale, bits)  # type: ignore[operator]
    why = f"scale enlarged so that the requantization multiplier of {node.name} fits in {bits} bits"
    state.replace_qparams((node, None), replace(out, scale=scale), why)
