"""In which precisions Arm's backend runs an op: its partitioner is queried for all ops of a graph at once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import decides, has_symbols, is_float, is_float_op, value_of
from ingot.errors import first_sentence
from ingot.targets.arm.answer_cache import FAILED, cached_answers, save_answers
from ingot.targets.arm.decompositions import apply_arm_decompositions
from ingot.targets.arm.device import Device, runs_float, tosa_profile
from ingot.targets.arm.partitioner_query import Refusals, query_partitioner, query_vela
from ingot.targets.arm.query_graph import QueryGraph, op_signature, ops_before
from ingot.targets.base import Ability

HOST_ONLY: frozenset[str] = frozenset()
NOT_FLOAT = Ability(HOST_ONLY, "it reads and gives no float tensor: nothing is planned for it")
DECOMPOSED = "Arm's flow decomposes it before quantization"
Ops = dict[str, Node]  # by signature


def ability(device: Device, node: Node) -> Ability:
    """int8 and int16 if the delegate takes the whole op between Q/DQ; float if it takes the op without them."""
    if not is_float(node) and not decides(node):
        return NOT_FLOAT
    profile, key = tosa_profile(device), op_signature(node)
    known = cached_answers(profile)
    if key not in known:
        answers = _query_in_halves(device, _unknown_ops(node, known))
        known |= answers
        save_answers(profile, answers)
    return known[key]


def taken_by_arm(device: Device, node: Node) -> bool:
    """In the delegate, as it is or as what Arm's passes make of it."""
    found = ability(device, node)
    return bool(found.runs) or found.because.startswith(DECOMPOSED)


def _unknown_ops(node: Node, known: dict[str, Ability]) -> Ops:
    """All ops of the graph without an answer: one query for many ops takes no longer than for one."""
    nodes = [n for n in node.graph.nodes if is_float_op(n) or decides(n)]
    return {s: n for n in [*nodes, node] if (s := op_signature(n)) not in known}


def _query_in_halves(device: Device, ops: Ops) -> dict[str, Ability]:
    """One query for all ops. If it fails, one for each half, down to the op on which Arm's tools fail."""
    try:
        return _query(device, ops)
    except Exception as e:
        if len(ops) == 1:
            why = f"{FAILED}: {type(e).__name__}: {first_sentence(e)}"
            return dict.fromkeys(ops, Ability(HOST_ONLY, why))
    items = list(ops.items())
    halves = items[: len(items) // 2], items[len(items) // 2 :]
    return {s: a for half in halves for s, a in _query_in_halves(device, dict(half)).items()}


def _query(device: Device, ops: Ops) -> dict[str, Ability]:
    static = {s: n for s, n in ops.items() if not _is_dynamic(n)}
    found = {
        s: Ability(HOST_ONLY, "dynamic shapes are not supported on this target") for s in ops.keys() - static.keys()
    }
    if not static:
        return found
    query, parts = QueryGraph(), _decomposed_by_arm(device, static)
    for s, n in static.items():
        for precision in ("int8", "float") if runs_float(device) else ("int8",):
            query.add(s, n, precision)
    said = query_partitioner(device, query)
    said |= {(s, "int16"): _why_not_compiled(device, n) for s, n in static.items() if said[s, "int16"] is None}
    return found | {s: _ability(s, said, parts.get(s)) for s in static}


def _why_not_compiled(device: Device, node: Node) -> str | None:
    """For a transposed convolution: the partitioner takes int16 on U55 and U65, but Vela does not."""
    asked = not device.is_gpu and weight_axis(node) == 1
    return query_vela(device, node, "int16") if asked else None


def _is_dynamic(node: Node) -> bool:
    vals = [value_of(n) for n in (node, *node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and has_symbols(v.shape) for v in vals)


def _ability(key: str, said: Refusals, decomposed: str | None) -> Ability:
    mine = {precision: why for (s, precision), why in said.items() if s == key}
    runs = {p for p, why in mine.items() if why is None and (decomposed is None or p == "float")}
    reasons = dict.fromkeys(f"{p}: {why}" for p, why in mine.items() if why)
    return Ability(frozenset(runs), decomposed or "; ".join(reasons) or "Arm's partitioner takes it")


def _decomposed_by_arm(device: Device, ops: Ops) -> dict[str, str]:
    """Ops that Arm's flow decomposes before quantization: its later passes may fail on the quantized op."""
    query = QueryGraph()
    for s, node in ops.items():
        query.add(s, node, "float")
    module = query.exported().module(check_guards=False)
    before = [_forms(o) for o in _outputs(module)]
    after = [_forms(o) for o in _outputs(apply_arm_decompositions(device, module))]
    parts = {s: now - was for (s, _), was, now in zip(query.keys, before, after, strict=True)}
    return {s: f"{DECOMPOSED}, into {_names(new)}" for s, new in parts.items() if new}


def _forms(output: Node) -> set[tuple[object, int]]:
    """Ops with the number of their operands: a number may become a constant."""
    return {(n.target, len(operands(n))) for n in ops_before(output)}


def _outputs(module: torch.fx.GraphModule) -> list[Node]:
    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return [n for n in torch.utils._pytree.tree_leaves(out.args[0]) if isinstance(n, Node)]


def _names(forms: Iterable[tuple[object, int]]) -> str:
    return ", ".join(sorted({str(t).removeprefix("aten.") for t, _ in forms}))
