"""Products of two activations: a result's scale a little larger, so that their factor has few enough bits.

A weight has a scale for each channel that nobody else reads, and is moved instead (`with_factors`).
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ingot.plan.cost_model import elements, multiplications
from ingot.plan.lut_alignment import store_again
from ingot.plan.qparams import rounded_down
from ingot.plan.state import Work, activations


def suit_factors(work: Work) -> None:
    """In graph order: what a product reads has its final scale. Of two results with one scale the first is suited."""
    suited: set[object] = set()
    for node in work.precisions:
        bits = work.target.numerics.multiplier_bits.get(work.precisions[node])
        shared = work.scale_groups.find((node, None)) if (node, None) in work.qparams else None
        if bits and shared is not None and shared not in suited and _sums_products(node, work):
            suited.add(shared)
            _suit(node, bits, work)


def _sums_products(node: Node, work: Work) -> bool:
    """Of two activations: torch counts more than one multiplication for each number."""
    return len(activations(node, work)) == 2 and multiplications(node) > elements(node)


def _suit(node: Node, bits: int, work: Work) -> None:
    a, b, out = (work.qparams[node, i] for i in (0, 1, None))
    product = a.scale * b.scale  # type: ignore[operator]
    scale = product / rounded_down(product / out.scale, bits)  # type: ignore[operator]
    store_again((node, None), replace(out, scale=scale), f"so that the factor of {node.name} has {bits} bits", work)
