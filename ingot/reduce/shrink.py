"""Smaller than few ops: fewer outputs and batches, smaller shapes, numbers from a seed. What still fails is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.fx import Graph

from ingot.graph import copied, output_nodes, value_of
from ingot.reduce.case import INPUTS, Batch, Case, name_inputs, units_of
from ingot.reduce.writing import constants


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Step after step, each from what the one before left."""
    for steps in (_fewer_batches, _fewer_outputs, _bypassed, _without_demands, _shapes, _seeded, _standard):
        while smaller := next((c for c in steps(case) if fails(c)), None):
            case = smaller
    return case


def _fewer_batches(case: Case) -> Iterator[Case]:
    for n in (1, 2):
        if n < len(case.batches):
            yield replace(case, batches=case.batches[:n])


def _fewer_outputs(case: Case) -> Iterator[Case]:
    outputs = output_nodes(case.module)
    for name in [n.name for n in outputs] if len(outputs) > 1 else []:
        yield _edited(case, partial(_return_only, name))


def _return_only(name: str, graph: Graph) -> None:
    last = next(n for n in reversed(graph.nodes) if n.op == "output")
    last.args = (tuple(n for n in last.args[0] if n.name == name),)


def _bypassed(case: Case) -> Iterator[Case]:
    """Without one op: its readers take what it read, where that has the same shape."""
    ops = [unit[0] for unit in units_of(case.module)]
    for op, read in ((o, r) for o in ops for r in o.all_input_nodes if r.op != "get_attr") if len(ops) > 1 else ():
        if isinstance(value_of(op), torch.Tensor) and value_of(op).shape == getattr(value_of(read), "shape", None):
            yield _edited(case, partial(_bypass, op.name, read.name))


def _bypass(op: str, read: str, graph: Graph) -> None:
    by_name = {n.name: n for n in graph.nodes}
    by_name[op].replace_all_uses_with(by_name[read])


def _edited(case: Case, edit: Callable[[Graph], None]) -> Case:
    """The edited graph, without the inputs that nothing reads any more."""
    module = copied(case.module)
    edit(module.graph)
    for node in [n for n in reversed(module.graph.nodes) if n.op not in ("placeholder", "output") and not n.users]:
        module.graph.erase_node(node)
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node in [n for n in inputs if not n.users]:
        module.graph.erase_node(node)
    left = [i for i, n in enumerate(inputs) if n.users]
    name_inputs(module)
    return replace(case, module=module, batches=tuple(tuple(b[i] for i in left) for b in case.batches))


def _without_demands(case: Case) -> Iterator[Case]:
    if len(case.recipe) > 1:
        yield replace(case, recipe={})
    for key in case.recipe:
        yield replace(case, recipe={k: v for k, v in case.recipe.items() if k != key})


def _shapes(case: Case) -> Iterator[Case]:
    """Half of every image; then half of one dimension of one input."""
    shapes = [tuple(x.shape) for x in case.batches[0]]
    images = {(i, d) for i, s in enumerate(shapes) for d in range(2, len(s)) if s[d] > 1}
    single = [{(i, d)} for i, s in enumerate(shapes) for d in range(len(s)) if s[d] > 1]
    for places in (images, *single):
        smaller = replace(case, batches=tuple(_halved(b, places) for b in case.batches))
        if places and _runs(smaller):
            yield smaller


def _halved(batch: Batch, places: set[tuple[int, int]]) -> Batch:
    halves = list(batch)
    for i, d in places:
        halves[i] = halves[i].narrow(d, 0, (halves[i].shape[d] + 1) // 2).contiguous()
    return tuple(halves)


def _runs(case: Case) -> bool:
    try:
        with torch.no_grad():
            case.module(*case.batches[0])
    except Exception:  # shapes are written into many graphs
        return False
    return True


def _seeded(case: Case) -> Iterator[Case]:
    """Everything at once, or else one after the other."""
    floats = {n for n, t in constants(case).items() if t.dtype.is_floating_point and t.numel() > 1}
    if all(x.dtype.is_floating_point for x in case.batches[0]):
        floats.add(INPUTS)
    left = sorted(floats - case.drawn)
    for names in (left, *([n] for n in left)) if len(left) > 1 else ([left] if left else []):
        yield replace(case, drawn=case.drawn | set(names))


def _standard(case: Case) -> Iterator[Case]:
    """Plain normal numbers, where those of the model's own spread are not needed."""
    if case.drawn and not case.standard:
        yield replace(case, standard=True)
