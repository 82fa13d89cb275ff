"""A question put to Arm's partitioner, in int8 (and float) and once more in int16."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import value_of
from ingot.errors import first_sentence
from ingot.patches.contexts import fast_lowering
from ingot.targets.arm.device import FORMATS, Device, compile_spec, partitioner_class
from ingot.targets.arm.fusions import is_marked, is_quantize, is_rounding, mark, op_name
from ingot.targets.arm.query_graph import Question, behind

Answers = dict[tuple[str, str], str | None]  # (signature, precision) -> why not; None where the op is taken


def refusals(device: Device, question: Question) -> Answers:
    """What the partitioner says, from one lowering of the question up to where it is asked."""
    asking = _asker(device)
    program = _lowered(question.exported(), asking)
    found = _read(asking, program, question.keys)
    _to_int16(program)
    with contextlib.suppress(_Asked):
        asking.partition(program)
    return found | _read(asking, program, [(s, p.replace("int8", "int16")) for s, p in question.keys])


def refused_by_compiler(device: Device, node: Node, precision: str) -> str | None:
    """What Vela says against an op by itself that the partitioner takes; None where it compiles it."""
    question = Question()
    question.add("", node, precision)
    try:
        _lower(question.exported(), _marker(device))
    except Exception as e:
        return f"Vela refuses it: {first_sentence(e)}"
    return None


class _Asked(Exception):
    """Ends the lowering once the partitioner has answered."""


def _marker(device: Device) -> Any:
    base = partitioner_class(device)

    class Marking(base):  # type: ignore[misc,valid-type]
        def partition(self, exported_program: Any) -> Any:
            mark(exported_program.graph)
            return super().partition(exported_program)

    return Marking(compile_spec(device))


def _asker(device: Device) -> Any:
    base = type(_marker(device))

    class Asking(base):  # type: ignore[misc,valid-type]
        def partition(self, exported_program: Any) -> Any:
            super().partition(exported_program)
            self.seen = exported_program
            raise _Asked

    return Asking(compile_spec(device))


def _lowered(exported: Any, asking: Any) -> Any:
    try:
        _lower(exported, asking)
    except _Asked:
        return asking.seen
    raise AssertionError("the partitioner was not asked")


def _lower(exported: Any, partitioner: Any) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    with fast_lowering(), contextlib.redirect_stdout(io.StringIO()):
        to_edge_transform_and_lower(exported, partitioner=[partitioner], compile_config=config)


def _to_int16(program: Any) -> None:
    """The same graph with every int8 activation made int16: only its roundings change."""
    form = FORMATS["int16"]
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
        if is_rounding(node) and node.args[-1] is torch.int8 and "per_tensor" in op_name(node):
            node.args = (*node.args[:3], form.qmin, form.qmax, torch.int16)
            stored = node if is_quantize(node) else node.all_input_nodes[0]
            stored.meta["val"] = value_of(stored).to(torch.int16)


def _read(asking: Any, program: Any, keys: list[tuple[str, str]]) -> Answers:
    outputs, refused = list(program.graph.output_node().args[0]), asking.refused
    return {k: _why_not(k[1], o, refused) for k, o in zip(keys, outputs, strict=True)}


def _why_not(precision: str, output: Node, refused: dict[Node, str]) -> str | None:
    """Why the op is not taken, or not whole; None where it is."""
    for node in behind(output):
        if "delegation_tag" not in node.meta:
            return refused.get(node, f"{op_name(node)} is left outside")
        if precision != "float" and not is_marked(node):
            return f"it becomes several ops, of which {op_name(node)} would run in float"
    return None
