"""Smaller than few ops: fewer outputs and batches, smaller shapes, numbers from a seed. What still fails is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.fx import Graph, Node

from ingot.core.fx import copy_graph_module, output_nodes, value_of
from ingot.verify.minify.case import INPUTS, Batch, Case, name_inputs, units_of
from ingot.verify.minify.codegen import constants

Change = Callable[[Case], Case | None]  # None: not here, or no longer
Places = frozenset[tuple[int, int]]  # dimensions: (input, dimension)


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """One change after the other, each on what the one before left."""
    for changes in (_batches, _outputs, _bypasses, _demands, _shapes, _seeds):
        for change in list(changes(case)):
            smaller = change(case)
            if smaller is not None and fails(smaller):
                case = smaller
    return case


def _batches(case: Case) -> Iterator[Change]:
    for n in (2, 1):
        yield partial(_first_batches, n=n)


def _first_batches(case: Case, n: int) -> Case | None:
    return replace(case, batches=case.batches[:n]) if n < len(case.batches) else None


def _outputs(case: Case) -> Iterator[Change]:
    for node in output_nodes(case.module):
        yield partial(_edited, edit=partial(_drop_output, node.name))


def _drop_output(name: str, graph: Graph) -> bool:
    last = next(n for n in reversed(graph.nodes) if n.op == "output")
    left = tuple(n for n in last.args[0] if n.name != name)
    last.args = (left,)
    return bool(left)


def _bypasses(case: Case) -> Iterator[Change]:
    """Without one op: its readers take what it read, where that has the same shape."""
    for op in (unit[0] for unit in units_of(case.module)):
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


def _edited(case: Case, edit: Callable[[Graph], bool]) -> Case | None:
    """The edited graph, without what nothing reads any more."""
    module = copy_graph_module(case.module)
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
    return replace(case, module=module, batches=tuple(tuple(b[i] for i in left) for b in case.batches))


def _demands(case: Case) -> Iterator[Change]:
    for key in case.recipe:
        yield partial(_without, key=key)


def _without(case: Case, key: str) -> Case:
    return replace(case, recipe={k: v for k, v in case.recipe.items() if k != key})


def _shapes(case: Case) -> Iterator[Change]:
    """All images at once, as small as can be; then each dimension of each input."""
    shapes = [tuple(x.shape) for x in case.batches[0]]
    images = frozenset((i, d) for i, s in enumerate(shapes) for d in range(2, len(s)))
    single = [frozenset({(i, d)}) for i, s in enumerate(shapes) for d in range(len(s))]
    for places in (images, *single):
        for most in (1, 2, 4):
            yield partial(_cut, places=places, most=most)


def _cut(case: Case, places: Places, most: int) -> Case | None:
    here = {(i, d) for i, d in places if i < len(case.batches[0]) and d < case.batches[0][i].dim()}
    if all(case.batches[0][i].shape[d] <= most for i, d in here):
        return None
    smaller = replace(case, batches=tuple(_narrowed(b, here, most) for b in case.batches))
    return smaller if _runs(smaller) else None


def _narrowed(batch: Batch, places: set[tuple[int, int]], most: int) -> Batch:
    cut = list(batch)
    for i, d in places:
        cut[i] = cut[i].narrow(d, 0, min(most, cut[i].shape[d])).contiguous()
    return tuple(cut)


def _runs(case: Case) -> bool:
    try:
        with torch.no_grad():
            case.module(*case.batches[0])
    except Exception:  # shapes are written into many graphs
        return False
    return True


def _seeds(case: Case) -> Iterator[Change]:
    """Plain normal numbers for everything, or with the model's own spread; or else for one after the other."""
    names = {n for n, t in constants(case).items() if t.dtype.is_floating_point and t.numel() > 1}
    if all(x.dtype.is_floating_point for x in case.batches[0]):
        names.add(INPUTS)
    yield partial(_drawn, names=names, standard=True)
    for some in (names, *({n} for n in sorted(names))):
        yield partial(_drawn, names=some, standard=False)


def _drawn(case: Case, names: set[str], standard: bool) -> Case | None:
    return None if names <= case.drawn else replace(case, drawn=case.drawn | names, standard=standard)
