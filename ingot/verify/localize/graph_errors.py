"""SQNR of the quantized graph against the float graph, value by value: where rounding costs most."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.export import Program, restore_state
from ingot.core.fx import is_float, source_of, undo_transform
from ingot.verify.metrics import sqnr

# SQNR assumed for exact inputs, about that of int8 rounding: otherwise the first rounding would always drop most.
FIRST_ROUNDING_DB = 40.0


def describe_largest_drop(
    program: Program, quantized: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]]
) -> str | None:
    """The value whose SQNR drops most below that of its operands, with the user's line and numbers."""
    if not batches:
        return None
    errors = sqnr_by_value(program, quantized, batches[0])
    worst = largest_drop(program, errors)
    return None if worst is None else describe_drop(worst, errors)


def largest_drop(program: Program, errors: dict[str, float]) -> Node | None:
    """The node whose SQNR drops most below that of its operands."""
    drops = {n: _drop(n, errors) for n in program.module.graph.nodes if n.name in errors}
    return max(drops, key=lambda n: drops[n]) if drops else None


def describe_drop(node: Node, errors: dict[str, float]) -> str:
    db, drop = errors[node.name], _drop(node, errors)
    return f"{node.name} ({source_of(node)}): SQNR {db:.1f} dB, {drop:.1f} dB below its operands"


def sqnr_by_value(program: Program, quantized: GraphModule, batch: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """SQNR in dB of each float value of the quantized graph against the float graph, in graph order."""
    want = _values(program.module, batch, program.state)
    got = _values(quantized, batch, program.state, want)
    return {n: sqnr(want[n].double(), got[n].double()) for n in want if n in got and got[n].shape == want[n].shape}


def _values(
    module: GraphModule,
    batch: tuple[torch.Tensor, ...],
    state: dict[str, torch.Tensor],
    only: Container[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Values by name, limited to `only` if that is given: dequantized weights are values too, and large."""
    found: dict[str, torch.Tensor] = {}

    class Keep(Interpreter):
        def run_node(self, n: Node) -> object:
            out = super().run_node(n)
            if n.op == "call_function" and isinstance(out, torch.Tensor) and out.dtype.is_floating_point:
                name, value = undo_transform(_before_qdq(n), out.detach())
                if only is None or name in only:
                    found[name] = value.clone()
            return out

    restore_state(module, state)
    with torch.no_grad():
        Keep(module, garbage_collect_values=True).run(*batch, enable_io_processing=False)
    restore_state(module, state)
    return found


def _before_qdq(node: Node) -> Node:
    """The x of dequantize(quantize(x)): the rounding error counts for x, not for its reader."""
    while "quantize_per" in str(node.target):
        node = node.all_input_nodes[0]
    return node


def _drop(node: Node, errors: dict[str, float]) -> float:
    read = [errors[n.name] for n in node.all_input_nodes if n.name in errors and is_float(n)]
    return min([*read, FIRST_ROUNDING_DB]) - errors[node.name]
