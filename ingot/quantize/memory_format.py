"""Channels-last inputs and outputs: a delegate that computes in NHWC then needs no permute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from ingot.capture.export import Program
from ingot.capture.inputs import memory_format_of
from ingot.core.fx import output_nodes, value_of
from ingot.errors import InputError, nearest


def channels_last_names(patterns: Sequence[str], module: GraphModule) -> tuple[str, ...]:
    """The inputs and outputs that match `patterns`; a wildcard matches only tensors of four dimensions."""
    nodes = {n.name: n for n in (*_placeholders(module), *output_nodes(module))}
    found = {name: None for p in patterns for name in _matching(p, nodes)}
    return tuple(found)


def _placeholders(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def _matching(pattern: str, nodes: dict[str, Node]) -> Iterator[str]:
    named = [name for name in nodes if fnmatchcase(name, pattern)]
    if not named:
        raise InputError(f"the model has no input or output '{pattern}'", hint=nearest(pattern, nodes))
    for name in named:
        sizes = tuple(getattr(value_of(nodes[name]), "shape", ()))
        if len(sizes) == 4:
            yield name
        elif name == pattern:
            raise InputError(
                f"'{name}' cannot be channels-last",
                why=f"it has {len(sizes)} dimensions; channels-last needs 4: N, C, H, W",
                hint="remove it from channels_last",
            )


def with_channels_last_inputs(program: Program, names: Sequence[str]) -> Program:
    """The program with its example inputs in channels-last memory format."""
    inputs = zip(program.example_inputs, _placeholders(program.module), strict=True)
    converted = tuple(_channels_last(x) if n.name in names else x for x, n in inputs)
    return replace(program, example_inputs=converted)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def channels_last_outputs_pass(which: Sequence[bool]) -> Callable[[GraphModule], PassResult]:
    """An edge pass that converts the marked outputs to channels-last, unless they already are."""

    def convert(module: GraphModule) -> PassResult:
        last = next(n for n in reversed(module.graph.nodes) if n.op == "output")
        # Updated buffers come before the outputs.
        outputs = [n for n in last.args[0] if isinstance(n, Node)][-len(which) :]  # type: ignore[union-attr]
        wanted = {n for n, is_wanted in zip(outputs, which, strict=True) if is_wanted}
        cloned = {n: _clone_channels_last(n) for n in wanted}
        last.args = (tuple(cloned.get(n, n) for n in last.args[0]),)  # type: ignore[union-attr,arg-type]
        module.recompile()
        return PassResult(module, any(n is not made for n, made in cloned.items()))

    return convert


def _clone_channels_last(node: Any) -> Any:
    from executorch.exir.dialects._ops import ops

    if node.meta["val"].is_contiguous(memory_format=torch.channels_last):
        return node
    with node.graph.inserting_after(node):
        made = node.graph.call_function(
            ops.edge.dim_order_ops._clone_dim_order.default, (node,), {"dim_order": [0, 2, 3, 1]}
        )
    made.meta = {**node.meta, "val": _channels_last(node.meta["val"])}
    return made


def io_layouts(program: ExportedProgram) -> tuple[list[str], list[str]]:
    """The layouts of the inputs and of the outputs."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes}
    inputs, outputs = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    # A number or None that is passed through has no name.
    return [layout_of(values[n]) for n in inputs if n in values], [layout_of(values[n]) for n in outputs if n in values]


def layout_of(val: object) -> str:
    last = isinstance(val, torch.Tensor) and memory_format_of(val) is torch.channels_last
    return "channels_last" if last else "contiguous"
