"""Queries of Arm's partitioner in int8, float and int16, and of Vela."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import is_float, value_of
from ingot.errors import first_sentence
from ingot.patches.speed_contexts import fast_lowering
from ingot.targets.arm.device import FORMATS, Device, compile_spec, partitioner_class
from ingot.targets.arm.quantized_markers import is_marked_quantized, is_qdq, is_quantize, mark_quantized, op_name
from ingot.targets.arm.query_graph import QueryGraph, ops_before

# Said of a partition, not of an op: beside other ops the partitioner takes these.
NO_COMPUTATION = "Partition contained only ops which are removed"
Refusals = dict[tuple[str, str], str | None]  # (signature, precision) -> why the op is refused; None: it is taken


def query_partitioner(device: Device, query: QueryGraph) -> Refusals:
    """What the partitioner refuses. The query is lowered once; for int16 only its Q/DQ change."""
    asking = _asking_partitioner(device)
    program = _lowered(query.exported(), asking)
    found = _read(asking, program, query.keys)
    _to_int16(program)
    with contextlib.suppress(_Asked):
        asking.partition(program)
    return found | _read(asking, program, [(s, p.replace("int8", "int16")) for s, p in query.keys])


def query_vela(device: Device, node: Node, precision: str) -> str | None:
    """Why Vela does not compile an op that the partitioner takes; None: it does."""
    query = QueryGraph()
    query.add("", node, precision)
    try:
        _lower(query.exported(), _marking_partitioner(device))
    except Exception as e:
        return f"Vela refuses it: {first_sentence(e)}"
    return None


class _Asked(Exception):
    """Ends the lowering when the partitioner has answered."""


def _marking_partitioner(device: Device) -> Any:
    base = partitioner_class(device)

    class MarkingPartitioner(base):  # type: ignore[misc,valid-type]
        def partition(self, exported_program: Any) -> Any:
            mark_quantized(exported_program.graph)
            return super().partition(exported_program)

    return MarkingPartitioner(compile_spec(device))


def _asking_partitioner(device: Device) -> Any:
    base = type(_marking_partitioner(device))

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
    """The same graph with int16 activations: only Q/DQ change."""
    form = FORMATS["int16"]
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
        if is_qdq(node) and node.args[-1] is torch.int8 and "per_tensor" in op_name(node):
            node.args = (*node.args[:3], form.qmin, form.qmax, torch.int16)
            integers = node if is_quantize(node) else node.all_input_nodes[0]
            integers.meta["val"] = value_of(integers).to(torch.int16)


def _read(asking: Any, program: Any, keys: list[tuple[str, str]]) -> Refusals:
    outputs, refused = list(program.graph.output_node().args[0]), asking.refused
    return {k: _why_refused(k[1], o, refused) for k, o in zip(keys, outputs, strict=True)}


def _reads_floats(node: Node) -> bool:
    """What only handles integers, such as a cast of an index, needs no marker."""
    return any(is_float(n) for n in (node, *node.all_input_nodes))


def _why_refused(precision: str, output: Node, refused: dict[Node, str]) -> str | None:
    """Why the op is not taken, or only in part; None: it is taken."""
    for node in ops_before(output):
        why = refused.get(node, f"{op_name(node)} is not taken")
        if "delegation_tag" not in node.meta and not why.startswith(NO_COMPUTATION):
            return why
        if precision != "float" and not is_marked_quantized(node) and _reads_floats(node):
            return f"it becomes several ops, and {op_name(node)} would run in float"
    return None
