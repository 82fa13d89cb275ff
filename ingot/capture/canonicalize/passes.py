"""The canonicalization passes. Each states what it ensures; outputs are compared before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from ingot.capture.canonicalize.arguments import positional_arguments
from ingot.capture.canonicalize.batch_norm import fold_batch_norm
from ingot.capture.canonicalize.constants import fold_constants, one_constant_per_use
from ingot.capture.canonicalize.convolutions import name_convolutions
from ingot.capture.canonicalize.data_movement import canonicalize_movement
from ingot.capture.canonicalize.identities import remove_identities, views_as_reshapes
from ingot.capture.canonicalize.negative_pads import crop_before_padding
from ingot.capture.canonicalize.output_check import expected_outputs, run_outputs
from ingot.capture.canonicalize.plain_operands import plain_operands
from ingot.core.fx import copy_graph_module


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
    Pass("convolutions", "positional", "conv1d … conv_transpose3d: no general convolution", name_convolutions),
    Pass(
        "operands",
        "positional",
        "no copy into a value; no sum with a hidden factor; no linear whose weight is a vector",
        plain_operands,
    ),
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


def canonicalize(module: GraphModule, example_inputs: tuple[torch.Tensor, ...]) -> tuple[PassRecord, ...]:
    """Run every pass on `module` in place and check that the outputs are unchanged."""
    expected = expected_outputs(copy_graph_module(module), example_inputs)
    records = tuple(_timed(each, module) for each in PASSES)
    if changed := [r.name for r in records if r.changed]:
        expected.check(", ".join(dict.fromkeys(changed)), run_outputs(module, example_inputs))
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
