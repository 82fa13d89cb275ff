"""Where rounding starts to hurt: the float graph and the quantized graph, value by value."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.export import Program, restore_state
from ingot.core.fx import is_float, source_of, undo_transform
from ingot.verify.metrics import sqnr

# What int8 leaves of a clean signal: the level of exact inputs, or the first rounding would always be blamed.
FIRST_ROUNDING_DB = 40.0


def culprit_of(program: Program, quantized: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]]) -> str | None:
    """The first value whose SQNR falls furthest below that of what it reads, with the user's line."""
    if not batches:
        return None
    errors = error_along(program, quantized, batches[0])
    worst = coarsest(program, errors)
    return None if worst is None else told(worst, errors)


def coarsest(program: Program, errors: dict[str, float]) -> Node | None:
    """The value that loses most, of what it reads."""
    drops = {n: _drop(n, errors) for n in program.module.graph.nodes if n.name in errors}
    return max(drops, key=lambda n: drops[n]) if drops else None


def told(node: Node, errors: dict[str, float]) -> str:
    return (
        f"{node.name} ({source_of(node)}): {errors[node.name]:.1f} dB, {_drop(node, errors):.1f} dB below what it reads"
    )


def error_along(program: Program, quantized: GraphModule, batch: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """SQNR in dB of each float value in the quantized graph against the float graph, in graph order."""
    want = _values(program.module, batch, program.state)
    got = _values(quantized, batch, program.state, want)
    return {n: sqnr(want[n].double(), got[n].double()) for n in want if n in got and got[n].shape == want[n].shape}


def _values(
    module: GraphModule,
    batch: tuple[torch.Tensor, ...],
    state: dict[str, torch.Tensor],
    only: Container[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Those of the names in `only`, where that is given: weights that are dequantized are values too, large ones."""
    found: dict[str, torch.Tensor] = {}

    class Keep(Interpreter):
        def run_node(self, n: Node) -> object:
            out = super().run_node(n)
            if n.op == "call_function" and isinstance(out, torch.Tensor) and out.dtype.is_floating_point:
                name, value = undo_transform(_stored_value(n), out.detach())
                if only is None or name in only:
                    found[name] = value.clone()
            return out

    restore_state(module, state)
    with torch.no_grad():
        Keep(module, garbage_collect_values=True).run(*batch, enable_io_processing=False)
    restore_state(module, state)
    return found


def _stored_value(node: Node) -> Node:
    """dequantize(quantize(x)) is what became of x: its error is x's, not its reader's."""
    while "quantize_per" in str(node.target):
        node = node.all_input_nodes[0]
    return node


def _drop(node: Node, errors: dict[str, float]) -> float:
    read = [errors[n.name] for n in node.all_input_nodes if n.name in errors and is_float(n)]
    return min([*read, FIRST_ROUNDING_DB]) - errors[node.name]
