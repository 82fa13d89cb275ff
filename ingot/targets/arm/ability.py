"""In which precisions Arm's backend takes an op: its partitioner is asked about all ops of a graph at once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import has_symbols, is_float, value_of
from ingot.errors import first_sentence
from ingot.targets.arm import answer_cache as memory
from ingot.targets.arm.decompositions import decomposed
from ingot.targets.arm.device import Device, profile, runs_float
from ingot.targets.arm.partitioner_query import Answers, refusals, refused_by_compiler
from ingot.targets.arm.query_graph import Question, behind, signature
from ingot.targets.base import Ability

NOWHERE: frozenset[str] = frozenset()
Asked = dict[str, Node]  # by signature


def ability(device: Device, node: Node) -> Ability:
    """int8 and int16 if the backend takes the op whole between a dequantize and a quantize; float if without them."""
    about, key = profile(device), signature(node)
    known = memory.of(about)
    if key not in known:
        learnt = _learnt(device, _unknown(node, known))
        known |= learnt
        memory.keep(about, learnt)
    return known[key]


def _unknown(node: Node, known: dict[str, Ability]) -> Asked:
    """All ops of the graph that were never asked about: one question for many takes no longer than for one."""
    nodes = [n for n in node.graph.nodes if n.op == "call_function" and is_float(n)]
    return {s: n for n in [*nodes, node] if (s := signature(n)) not in known}


def _learnt(device: Device, asked: Asked) -> dict[str, Ability]:
    """Ask about all at once; where that fails about each half, down to the op that the backend cannot even look at."""
    try:
        return _answers(device, asked)
    except Exception as e:
        if len(asked) == 1:
            why = f"{memory.FAILED}: {type(e).__name__}: {first_sentence(e)}"
            return dict.fromkeys(asked, Ability(NOWHERE, why))
    items = list(asked.items())
    halves = items[: len(items) // 2], items[len(items) // 2 :]
    return {s: a for half in halves for s, a in _learnt(device, dict(half)).items()}


def _answers(device: Device, asked: Asked) -> dict[str, Ability]:
    fixed = {s: n for s, n in asked.items() if not _is_dynamic(n)}
    found = {s: Ability(NOWHERE, "dynamic shapes were not tried on this target") for s in asked.keys() - fixed.keys()}
    if not fixed:
        return found
    question, apart = Question(), _taken_apart(device, fixed)
    for s, n in fixed.items():
        for precision in ("int8", "float") if runs_float(device) else ("int8",):
            question.add(s, n, precision)
    said = refusals(device, question)
    said |= {(s, "int16"): _why_not_compiled(device, n) for s, n in fixed.items() if said[s, "int16"] is None}
    return found | {s: _ability(s, said, apart.get(s)) for s in fixed}


def _why_not_compiled(device: Device, node: Node) -> str | None:
    """Of a transposed convolution: the partitioner takes it in int16 for U55 and U65, and Vela does not."""
    asked = not device.is_gpu and weight_axis(node) == 1
    return refused_by_compiler(device, node, "int16") if asked else None


def _is_dynamic(node: Node) -> bool:
    vals = [value_of(n) for n in (node, *node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and has_symbols(v.shape) for v in vals)


def _ability(key: str, said: Answers, apart: str | None) -> Ability:
    mine = {precision: why for (s, precision), why in said.items() if s == key}
    runs = {p for p, why in mine.items() if why is None and (apart is None or p == "float")}
    reasons = dict.fromkeys(f"{p}: {why}" for p, why in mine.items() if why)
    return Ability(frozenset(runs), apart or "; ".join(reasons) or "Arm's partitioner takes it")


def _taken_apart(device: Device, fixed: Asked) -> dict[str, str]:
    """Ops that Arm's own flow takes apart before it quantizes: whole and on integers its later passes may die."""
    question = Question()
    for s, node in fixed.items():
        question.add(s, node, "float")
    module = question.exported().module(check_guards=False)
    before = [_kinds(o) for o in _outputs(module)]
    after = [_kinds(o) for o in _outputs(decomposed(device, module))]
    parts = {s: now - was for (s, _), was, now in zip(question.keys, before, after, strict=True)}
    return {s: f"Arm's flow takes it apart first, into {_names(new)}" for s, new in parts.items() if new}


def _kinds(output: Node) -> set[object]:
    return {n.target for n in behind(output)}


def _outputs(module: torch.fx.GraphModule) -> list[Node]:
    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return [n for n in torch.utils._pytree.tree_leaves(out.args[0]) if isinstance(n, Node)]


def _names(targets: Iterable[object]) -> str:
    return ", ".join(sorted(str(t).removeprefix("aten.") for t in targets))
