"""The canonicalization passes. Each states what it ensures; outputs are compared before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter

from ingot.capture.canonicalize.arguments import positional_arguments
from ingot.capture.canonicalize.batch_norm import fold_batch_norm
from ingot.capture.canonicalize.constants import fold_constants, one_constant_per_use
from ingot.capture.canonicalize.data_movement import canonicalize_movement
from ingot.capture.canonicalize.identities import remove_identities, views_as_reshapes
from ingot.capture.canonicalize.negative_pads import crop_before_padding
from ingot.capture.canonicalize.plain_operands import plain_operands
from ingot.core.run_batched import has_mutating_op, run_batched
from ingot.errors import CaptureError


@dataclass(frozen=True)
class Pass:
    """A rewrite of the whole graph. `run` returns the number of changes."""

    name: str
    requires: str
    ensures: str
    run: Callable[[GraphModule], int]


@dataclass(frozen=True)
class PassRecord:
    """One executed pass."""

    name: str
    changed: int
    seconds: float


PASSES = (
    Pass(
        "reshape",
        "functional ATen",
        "reshape is the only change of shape; it has no requirement on strides",
        views_as_reshapes,
    ),
    Pass(
        "positional", "functional ATen", "no keyword argument where the schema allows a position", positional_arguments
    ),
    Pass("operands", "positional", "no copy into a value; no sum with a hidden factor", plain_operands),
    Pass("pads", "positional", "no pad by a negative amount, unless by a symbolic one", crop_before_padding),
    Pass(
        "fold",
        "positional",
        "values that depend on constants only are constants; no factory of known shape",
        fold_constants,
    ),
    Pass(
        "batch norm", "fold", "no batch norm after a convolution or linear that it can be folded into", fold_batch_norm
    ),
    Pass(
        "identities", "positional", "no op whose output is its input (clone, dropout, no-op expand)", remove_identities
    ),
    Pass("identities", "reshape", "no op whose output is its input (clone, dropout, no-op expand)", remove_identities),
    Pass(
        "movement",
        "identities",
        "movement that keeps the order of elements is slice and reshape only",
        canonicalize_movement,
    ),
    Pass("constants", "fold", "one constant node and one attribute per use", one_constant_per_use),
)

# Only batch norm folding rounds. 80 dB is a relative error of 10^-4.
MIN_SQNR_DB = 80.0


def canonicalize(module: GraphModule, example_inputs: tuple[torch.Tensor, ...]) -> tuple[PassRecord, ...]:
    """Run every pass on `module` in place and check that the outputs are unchanged."""
    before = run_outputs(module, example_inputs)
    records = tuple(_timed(each, module) for each in PASSES)
    if changed := [r.name for r in records if r.changed]:
        check_outputs_unchanged(", ".join(dict.fromkeys(changed)), before, run_outputs(module, example_inputs))
    return records


def _timed(each: Pass, module: GraphModule) -> PassRecord:
    start = time.perf_counter()
    if changed := each.run(module):
        clean_up_graph(module)
    return PassRecord(each.name, changed, time.perf_counter() - start)


def clean_up_graph(module: GraphModule) -> None:
    """Remove dead code, lint and recompile."""
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def run_outputs(module: GraphModule, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The output tensors for `inputs`, interpreted node by node: no code generation."""
    out = _run_and_restore(module, inputs) if has_mutating_op(module) else run_batched(module, [inputs])[0]
    return [o for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]


def _run_and_restore(module: GraphModule, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Run, then restore the buffers that the program writes."""
    state = {k: v.clone() for k, v in module.named_buffers() if _is_written(module, k)}
    with torch.no_grad():
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        out = Interpreter(module).run(*given)
        for k, v in state.items():
            module.get_buffer(k).copy_(v)
    return out


def _is_written(module: GraphModule, name: str) -> bool:
    copies = [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]
    return any(getattr(n.args[0], "target", None) == name for n in copies)


def check_outputs_unchanged(name: str, before: list[torch.Tensor], after: list[torch.Tensor]) -> None:
    """Raise if a rewrite changed the outputs."""
    for i, (b, a) in enumerate(zip(before, after, strict=True)):
        if not _same(b, a):
            raise CaptureError(
                f"rewrite '{name}' changed output {i}",
                why="a rewrite must preserve the values",
                hint="please report this model: it is a bug in Ingot",
            )


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if not before.dtype.is_floating_point:
        return torch.equal(before, after)
    finite = torch.isfinite(before)
    if not torch.equal(finite, torch.isfinite(after)):
        return False
    b, a = before[finite].double(), after[finite].double()
    return bool((b - a).square().sum() <= b.square().sum() * 10 ** (-MIN_SQNR_DB / 10) + 1e-12)
