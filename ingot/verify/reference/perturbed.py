"""Run a graph with rounding noise added to every computed value: which results depend on how a tie was rounded?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.op_semantics import Kind, effect_of
from ingot.core.fx import constant_of
from ingot.targets.base import Target
from ingot.verify.reference.interpreter import DoubleInterpreter, narrow

ROUNDING = 2.0**-18  # of a float32 sum of some thousand terms, or of an approximated exp; a float32 itself has 2^-24
EXACT = (Kind.MOVES, Kind.SELECTS, Kind.CREATES)


def run_perturbed(
    module: GraphModule, batches: Sequence[tuple[Any, ...]], target: Target | None, seed: int
) -> list[Any]:
    """The outputs of each batch; in double precision if a target is given."""
    interpreter = _perturbing(DoubleInterpreter(module, target) if target else Interpreter(module), seed)
    with torch.no_grad():
        results = [interpreter.run(*batch) for batch in batches]
    return [torch.utils._pytree.tree_map_only(Tensor, narrow, r) for r in results]


def _perturbing(interpreter: Interpreter, seed: int) -> Interpreter:
    plain, generator = interpreter.run_node, torch.Generator().manual_seed(seed)

    def run_node(n: Node) -> Any:
        made = plain(n)
        if not isinstance(made, Tensor) or not made.dtype.is_floating_point or not _computes(n):
            return made
        finite = made.nan_to_num(0.0, 0.0, 0.0)
        size = finite.abs() + finite.square().mean().sqrt()
        return made + ROUNDING * size * torch.randn(made.shape, generator=generator, dtype=made.dtype)

    interpreter.run_node = run_node  # type: ignore[method-assign]
    return interpreter


def _computes(node: Node) -> bool:
    """Numbers that are only moved stay equal to one another; a dequantized value is on its grid."""
    if node.op != "call_function" or "quantize" in str(node.target):
        return False
    return "val" not in node.meta or effect_of(node, constant_of).kind not in EXACT
