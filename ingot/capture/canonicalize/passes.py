"""One canonical form for all that follows. Each pass says what it ensures; numbers are compared before and after."""

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
from ingot.capture.canonicalize.data_movement import plain_movement
from ingot.capture.canonicalize.identities import remove_identities, views_as_reshapes
from ingot.core.batched import run_batched, writes
from ingot.errors import CaptureError


@dataclass(frozen=True)
class Pass:
    """A rewrite of the whole graph; `run` returns how many places it changed."""

    name: str
    requires: str
    ensures: str
    run: Callable[[GraphModule], int]


@dataclass(frozen=True)
class PassRecord:
    name: str
    changed: int
    seconds: float


PASSES = (
    Pass(
        "reshape",
        "functional ATen",
        "one spelling of a change of shape, which asks nothing of the layout",
        views_as_reshapes,
    ),
    Pass(
        "positional", "functional ATen", "no keyword argument where the schema allows a position", positional_arguments
    ),
    Pass(
        "fold", "positional", "what depends on constants only is a constant; no factory of known shape", fold_constants
    ),
    Pass(
        "batch norm", "fold", "no batch norm after a convolution or linear that it can be folded into", fold_batch_norm
    ),
    Pass(
        "identities", "positional", "no op whose output is its input (clone, dropout, no-op expand)", remove_identities
    ),
    Pass("identities", "reshape", "no op whose output is its input (clone, dropout, no-op expand)", remove_identities),
    Pass("movement", "identities", "elements that stay in order are moved by slice and reshape only", plain_movement),
    Pass("constants", "fold", "one constant node and one attribute per use", one_constant_per_use),
)

# Folding a batch norm rounds; everything else moves nodes only. 80 dB is 1 part in 10^4.
FAITHFUL_DB = 80.0


def canonicalize(module: GraphModule, example_inputs: tuple[torch.Tensor, ...]) -> tuple[PassRecord, ...]:
    """Run every pass on `module` in place; all of them together give the numbers that it gave."""
    before = outputs(module, example_inputs)
    records = tuple(_timed(each, module) for each in PASSES)
    if changed := [r.name for r in records if r.changed]:
        check_same(", ".join(dict.fromkeys(changed)), before, outputs(module, example_inputs))
    return records


def _timed(each: Pass, module: GraphModule) -> PassRecord:
    start = time.perf_counter()
    if changed := each.run(module):
        settle(module)
    return PassRecord(each.name, changed, time.perf_counter() - start)


def settle(module: GraphModule) -> None:
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def outputs(module: GraphModule, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """One run, node by node: code would have to be made first."""
    out = _undone(module, inputs) if writes(module) else run_batched(module, [inputs])[0]
    return [o for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]


def _undone(module: GraphModule, inputs: tuple[torch.Tensor, ...]) -> Any:
    """What it writes to buffers is as it was afterwards."""
    state = {k: v.clone() for k, v in module.named_buffers() if _written(module, k)}
    with torch.no_grad():
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        out = Interpreter(module).run(*given)
        for k, v in state.items():
            module.get_buffer(k).copy_(v)
    return out


def _written(module: GraphModule, name: str) -> bool:
    copies = [n for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]
    return any(getattr(n.args[0], "target", None) == name for n in copies)


def check_same(name: str, before: list[torch.Tensor], after: list[torch.Tensor]) -> None:
    """Refuse a rewrite that moved the numbers."""
    for i, (b, a) in enumerate(zip(before, after, strict=True)):
        if not _same(b, a):
            raise CaptureError(
                f"rewriting step '{name}' changed output {i}",
                why="a rewrite must compute the same numbers",
                hint="please report this model; it is a defect of Ingot",
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
    return bool((b - a).square().sum() <= b.square().sum() * 10 ** (-FAITHFUL_DB / 10) + 1e-12)
