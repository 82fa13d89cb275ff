"""Images among inputs and outputs that lie in memory as N, H, W, C: then no delegate has to turn them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node

from ingot.capture import Program
from ingot.errors import InputError, nearest
from ingot.graph import output_nodes, value_of
from ingot.inputs import memory_format_of


def images_of(patterns: Sequence[str], module: GraphModule) -> tuple[str, ...]:
    """The inputs and outputs that a recipe means; by a pattern only what can be an image."""
    nodes = {n.name: n for n in (*_inputs(module), *output_nodes(module))}
    found = {name: None for p in patterns for name in _matching(p, nodes)}
    return tuple(found)


def _inputs(module: GraphModule) -> list[Node]:
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
                why=f"it has {len(sizes)} dimensions, an image has 4: N, C, H, W",
                hint="leave it out of channels_last",
            )


def laid_out(program: Program, images: Sequence[str]) -> Program:
    """The same program, called with images that lie as the plan says."""
    inputs = zip(program.example_inputs, _inputs(program.module), strict=True)
    given = tuple(_turned(x) if n.name in images else x for x, n in inputs)
    return replace(program, example_inputs=given)


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def turn_outputs(exported: ExportedProgram, which: Sequence[bool]) -> None:
    """Have these outputs channels-last; those that come out so are left alone."""
    specs = [s for s in exported.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    nodes = {n.name: n for n in exported.graph.nodes}
    for spec, wanted in zip(specs, which, strict=True):
        node = nodes.get(getattr(spec.arg, "name", ""))
        if wanted and node is not None and not _is_turned(node):
            spec.arg.name = _clone(node).name  # type: ignore[union-attr]
    exported.graph_module.recompile()


def _is_turned(node: Node) -> bool:
    return node.meta["val"].is_contiguous(memory_format=torch.channels_last)


def _clone(node: Node) -> Node:
    last = next(n for n in reversed(node.graph.nodes) if n.op == "output")
    how: Any = {"memory_format": torch.channels_last}
    with node.graph.inserting_before(last):
        made = node.graph.call_function(torch.ops.aten.clone.default, (node,), how)
    made.meta = {**node.meta, "val": node.meta["val"].clone(**how)}
    last.replace_input_with(node, made)
    return made


def layouts(exported: ExportedProgram) -> tuple[list[str], list[str]]:
    """Of the inputs and of the outputs, as the program takes and gives them."""
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes}
    signature = exported.graph_signature
    return tuple(
        [layout_of(values.get(str(name))) for name in names]
        for names in (signature.user_inputs, signature.user_outputs)
    )  # type: ignore[return-value]


def layout_of(val: object) -> str:
    last = isinstance(val, torch.Tensor) and memory_format_of(val) is torch.channels_last
    return "channels_last" if last else "contiguous"
