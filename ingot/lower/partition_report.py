"""Reports the result of partitioning: delegates with inputs and outputs, host ops with reasons."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.artefact import Delegate, HostOp, TensorInfo
from ingot.core.fx import nearest_source, untransformed_name
from ingot.lower.opaque_ops import EXTRA_BACKEND_OP
from ingot.quantize.memory_format import layout_of
from ingot.targets.base import Files, Target, digest

VALUE_KEY = "ingot_value"


@contextlib.contextmanager
def collect_refusals() -> Iterator[dict[str, str]]:
    """By node name: why the partitioner refused the op, read from its log."""
    found: dict[str, str] = {}

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            node, reason = getattr(record.msg, "node", None), getattr(record.msg, "reason", None)
            if node is not None and reason:
                found.setdefault(node.name, str(reason))

    # Only partitioners: at DEBUG level a backend's serialiser writes graphs into the current folder.
    names = [n for n in list(logging.root.manager.loggerDict) if n.startswith("executorch") and "partition" in n]
    loggers = [logging.getLogger(n) for n in names]
    with contextlib.ExitStack() as stack:
        for logger in loggers:
            stack.enter_context(_attached(logger, Collector()))
        yield found


@contextlib.contextmanager
def _attached(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def delegates_of(graph: GraphModule, files: Mapping[str, Files]) -> tuple[Delegate, ...]:
    return tuple(_delegate(graph, n, files) for n in _delegate_calls(graph))


def delegate_payloads(graph: GraphModule) -> tuple[bytes, ...]:
    """What each backend loads, in the order of the calls."""
    return tuple(_lowered_module(graph, n).processed_bytes for n in _delegate_calls(graph))


def _delegate_calls(graph: GraphModule) -> list[Node]:
    return [n for n in graph.graph.nodes if n.op == "call_function" and "call_delegate" in str(n.target)]


def _lowered_module(graph: GraphModule, call: Node) -> Any:
    return getattr(graph, str(call.args[0].target))  # type: ignore[union-attr]


def _delegate(graph: GraphModule, node: Node, files: Mapping[str, Files]) -> Delegate:
    lowered = _lowered_module(graph, node)
    ops = [n for n in lowered.original_module.graph.nodes if n.op == "call_function"]
    kinds = [_op_name(n) for n in ops if n.target.__name__ != "getitem" and "quantize_per" not in str(n.target)]
    inputs = tuple(tensor_info(a) for a in node.args[1:] if isinstance(a, Node))
    outputs = tuple(tensor_info(u) for u in node.users if u.op == "call_function")
    name = digest(lowered.processed_bytes)
    size, values = _delegate_bytes(lowered), tuple(dict.fromkeys(v for n in ops if (v := _value(n))))
    own_files = files.get(name, {})
    return Delegate(lowered.backend_id, len(kinds), inputs, outputs, tuple(kinds), name, size, values, own_files)


def _delegate_bytes(lowered: Any) -> int:
    named = getattr(lowered, "named_data_store_output", None)
    return len(lowered.processed_bytes) + sum(len(b) for b in (named.buffers if named else ()))


def mark_values(quantized: GraphModule) -> None:
    """Store the name of each op's value in its metadata: passes rename nodes and keep metadata."""
    for node in quantized.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), VALUE_KEY: node.name}


def _value(node: Node) -> str | None:
    return None if "quantize_per" in str(node.target) else marked_value(node)


def marked_value(node: Node) -> str | None:
    """The name that `mark_values` gave to the op that this node comes from."""
    return (node.meta.get("custom") or {}).get(VALUE_KEY)


def host_op_values(graph: GraphModule) -> dict[str, str]:
    """By name of a host op: the value of the program that it computes."""
    nodes = [n for n in graph.graph.nodes if n.op == "call_function" and _is_host_op(n)]
    return {n.name: value for n in nodes if (value := _value(n))}


def tensor_info(node: Node) -> TensorInfo:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return TensorInfo(node.name, type(val).__name__, ())
    shape = tuple(d if isinstance(d, int) else str(d) for d in val.shape)
    return TensorInfo(node.name, str(val.dtype).removeprefix("torch."), shape, layout_of(val))


def host_ops_of(graph: GraphModule, target: Target, reasons: dict[str, str]) -> tuple[HostOp, ...]:
    nodes = [n for n in graph.graph.nodes if n.op == "call_function" and _is_host_op(n)]
    return tuple(_host_op(n, target, reasons) for n in nodes)


def _is_host_op(node: Node) -> bool:
    name = str(node.target)
    if "call_delegate" in name or getattr(node.target, "__name__", "") == "getitem":
        return False
    return not (_is_boundary_quantize(node) or "sym_size" in name or "sym_constrain" in name)


def _is_boundary_quantize(node: Node) -> bool:
    """Q/DQ of a program input or output belongs to the interface and is no host fallback."""
    if "quantize_per" not in str(node.target):
        return False
    return all(u.op == "output" for u in node.users) or all(n.op == "placeholder" for n in node.all_input_nodes)


def _host_op(node: Node, target: Target, reasons: dict[str, str]) -> HostOp:
    op = _op_name(node)
    barred = (target.lowering.barred.get(str(name)) for name in barred_as(node, target.lowering.barred))
    reason = layout_copy_reason(node) or next(barred, None) or reasons.get(node.name)
    reason = reason or _default_reason(node, op, target)
    if node.meta.get(EXTRA_BACKEND_OP):
        owners = " or ".join(b.name for b in target.lowering.extra_backends)
        reason = f"{owners} owns it, and its partitioner refused it"
    hint = target.lowering.hints.get(
        op.split(".")[0], "rewrite it with ops that the backend has, or accept the delegate boundary"
    )
    return HostOp(op, node.name, nearest_source(node), reason, hint)


def layout_copy_reason(node: Node) -> str | None:
    """For a copy that lowering inserted, and no op of the program: from which memory format to which, and for whom."""
    if "dim_order_ops" not in str(node.target) or not node.all_input_nodes:
        return None
    source = node.all_input_nodes[0]
    before, after = (layout_of(n.meta.get("val")).replace("_", "-") for n in (source, node))
    if before == after or marked_value(node) not in (None, marked_value(source)):
        return None
    readers = ", ".join("the output" if u.op == "output" else u.name for u in node.users)
    return f"a layout copy: {source.name} is {before}, and {readers} reads it {after}"


def barred_as(node: Node, barred: Container[str]) -> list[str]:
    """The names of the barred ops that the node is part of, or whose Q/DQ it is. Empty: it is not barred."""
    around = [node]
    if "dequantize_per" in str(node.target):
        around = list(node.users)
    elif "quantize_per" in str(node.target) or getattr(node.target, "__name__", "") == "getitem":
        around = list(node.all_input_nodes)
    names = [untransformed_name(_value(n) or "") for n in around]
    return [name for name in names if name] if all(name in barred for name in names) else []


def _default_reason(node: Node, op: str, target: Target) -> str:
    if (node.meta.get("custom") or {}).get("ingot") == "float" and not target.numerics.runs_float:
        return f"it is planned in float, which {target.lowering.backend_id} does not run; `ingot why` explains the plan"
    return f"{target.lowering.backend_id} has no kernel for {op}"


def _op_name(node: Node) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return name.removeprefix("aten.")
