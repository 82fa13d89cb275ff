"""Simplify what ddmin left: fewer outputs and batches, smaller shapes, random constants. Keep what still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.fx import Graph, Node

from ingot.core.fx import copy_graph_module, output_nodes, value_of
from ingot.verify.minify.codegen import constants
from ingot.verify.minify.variant import INPUTS, Batch, Variant, name_inputs, units_of

Simplification = Callable[[Variant], Variant | None]  # None: does not apply
Dims = frozenset[tuple[int, int]]  # (input, dimension)


def shrink(variant: Variant, fails: Callable[[Variant], bool]) -> Variant:
    """Try the simplifications in order, each on the result of the previous ones."""
    for simplifications in (_batches, _outputs, _bypasses, _recipe_keys, _shapes, _random_constants):
        for simplify in list(simplifications(variant)):
            smaller = simplify(variant)
            if smaller is not None and fails(smaller):
                variant = smaller
    return variant


def _batches(variant: Variant) -> Iterator[Simplification]:
    for n in (2, 1):
        yield partial(_first_batches, n=n)


def _first_batches(variant: Variant, n: int) -> Variant | None:
    return replace(variant, batches=variant.batches[:n]) if n < len(variant.batches) else None


def _outputs(variant: Variant) -> Iterator[Simplification]:
    for node in output_nodes(variant.module):
        yield partial(_edited, edit=partial(_drop_output, node.name))


def _drop_output(name: str, graph: Graph) -> bool:
    last = next(n for n in reversed(graph.nodes) if n.op == "output")
    left = tuple(n for n in last.args[0] if n.name != name)
    last.args = (left,)
    return bool(left)


def _bypasses(variant: Variant) -> Iterator[Simplification]:
    """Remove one op: its readers read its operand instead, if that has the same shape."""
    for op in (unit[0] for unit in units_of(variant.module)):
        for read in (n for n in op.all_input_nodes if n.op != "get_attr" and _shape(n) == _shape(op)):
            yield partial(_edited, edit=partial(_bypass, op.name, read.name))


def _shape(node: Node) -> object:
    val = value_of(node)
    return tuple(val.shape) if isinstance(val, torch.Tensor) else node


def _bypass(op: str, read: str, graph: Graph) -> bool:
    by_name = {n.name: n for n in graph.nodes}
    if op not in by_name or read not in by_name:
        return False
    by_name[op].replace_all_uses_with(by_name[read])
    return any(n.op == "call_function" and n.users for n in graph.nodes)


def _edited(variant: Variant, edit: Callable[[Graph], bool]) -> Variant | None:
    """The edited graph, without dead nodes and unused inputs."""
    module = copy_graph_module(variant.module)
    if not edit(module.graph):
        return None
    for node in [n for n in reversed(module.graph.nodes) if n.op not in ("placeholder", "output")]:
        if not node.users:
            module.graph.erase_node(node)
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    left = [i for i, n in enumerate(inputs) if n.users]
    for node in [n for n in inputs if not n.users]:
        module.graph.erase_node(node)
    name_inputs(module)
    return replace(variant, module=module, batches=tuple(tuple(b[i] for i in left) for b in variant.batches))


def _recipe_keys(variant: Variant) -> Iterator[Simplification]:
    for key in variant.recipe:
        yield partial(_without, key=key)


def _without(variant: Variant, key: str) -> Variant:
    return replace(variant, recipe={k: v for k, v in variant.recipe.items() if k != key})


def _shapes(variant: Variant) -> Iterator[Simplification]:
    """Shrink all spatial dimensions at once; then each dimension of each input."""
    shapes = [tuple(x.shape) for x in variant.batches[0]]
    images = frozenset((i, d) for i, s in enumerate(shapes) for d in range(2, len(s)))
    single = [frozenset({(i, d)}) for i, s in enumerate(shapes) for d in range(len(s))]
    for dims in (images, *single):
        for most in (1, 2, 4):
            yield partial(_sliced, dims=dims, most=most)


def _sliced(variant: Variant, dims: Dims, most: int) -> Variant | None:
    here = {(i, d) for i, d in dims if i < len(variant.batches[0]) and d < variant.batches[0][i].dim()}
    if all(variant.batches[0][i].shape[d] <= most for i, d in here):
        return None
    smaller = replace(variant, batches=tuple(_slice(b, here, most) for b in variant.batches))
    return smaller if _runs(smaller) else None


def _slice(batch: Batch, dims: set[tuple[int, int]], most: int) -> Batch:
    sliced = list(batch)
    for i, d in dims:
        sliced[i] = sliced[i].narrow(d, 0, min(most, sliced[i].shape[d])).contiguous()
    return tuple(sliced)


def _runs(variant: Variant) -> bool:
    try:
        with torch.no_grad():
            variant.module(*variant.batches[0])
    except Exception:  # many graphs contain fixed shapes
        return False
    return True


def _random_constants(variant: Variant) -> Iterator[Simplification]:
    """Standard normal numbers for everything; or with the model's mean and deviation; or one constant at a time."""
    names = {n for n, t in constants(variant).items() if t.dtype.is_floating_point and t.numel() > 1}
    if all(x.dtype.is_floating_point for x in variant.batches[0]):
        names.add(INPUTS)
    yield partial(_randomized, names=names, standard=True)
    for some in (names, *({n} for n in sorted(names))):
        yield partial(_randomized, names=some, standard=False)


def _randomized(variant: Variant, names: set[str], standard: bool) -> Variant | None:
    return None if names <= variant.random else replace(variant, random=variant.random | names, standard=standard)
