"""Quantized graph -> .pte: exported again, partitioned by the target, every op left on the host with its reason."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.backends.closing import OWNED, close, closing, open_edge
from ingot.boundary import converts_io, described, encode, exposed, input_storages, output_storages
from ingot.capture import Program, first_sentence, restore_state
from ingot.casting import Boundary, Delegate, HostOp, TensorInfo
from ingot.cutting import cut_off
from ingot.errors import IngotError, LowerError
from ingot.graph import copied, has_symbols, output_nodes, source_of, value_of
from ingot.layout import layout_of, layouts, turn_outputs
from ingot.plan.model import Plan
from ingot.retracing import quick
from ingot.targets.base import Files, Target, digest


@dataclass(frozen=True)
class Lowered:
    """A program file and what is in it."""

    pte: bytes
    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: Boundary


def lower_graph(program: Program, quantized: GraphModule, plan: Plan, target: Target) -> Lowered:
    """Lower the quantized form of `program` for `target`."""
    with closing(), _reasons() as reasons:
        exported = _stage("export", target, lambda: _export(program, exposed(quantized, plan), plan, target))
        edge = _stage("partition", target, lambda: _to_edge(exported, target))
    graph = edge.exported_program().graph_module
    delegates, host_ops = _delegates(graph, target.finish(graph)), _host_ops(graph, target, reasons)
    pte = _stage("serialise", target, lambda: _serialise(edge, program, target))  # rewrites the graph: look before
    return Lowered(pte, delegates, host_ops, _boundary(program, plan, exported))


def _stage(name: str, target: Target, work: Any) -> Any:
    """Run a step of the backend; whatever it throws becomes a sentence, with the original chained."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return work()
    except IngotError:
        raise
    except Exception as e:
        raise LowerError(
            f"{target.name} refused the program at '{name}'",
            why=f"{type(cause := _root(e)).__name__}: {first_sentence(cause)}",
            hint="the chained error has the backend's own words; an op that it names can be left to the host: "
            "scopes = [{ op = '…', precision = 'float' }] in a recipe",
        ) from e


def _root(error: BaseException) -> BaseException:
    """What went wrong first: pass managers wrap it in lists of passes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _export(program: Program, quantized: GraphModule, plan: Plan, target: Target) -> torch.export.ExportedProgram:
    quantized = copied(quantized)
    cut_off(quantized, plan, program.module, target.owns)
    for node in quantized.graph.nodes:
        # Provenance is copied again at every re-tracing and grows each time; nothing after this reads it.
        node.meta.pop("from_node", None)
        planned = node.meta.pop("quantization_annotation", None)
        if (
            planned is None
            and isinstance(node.target, torch._ops.OpOverload)
            and "quantize_per" not in str(node.target)
        ):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), "ingot": "float"}
    close(quantized, lambda n: target.owns(n) or (not plan.integer_io and converts_io(n, plan)))
    _own_dequantizes(quantized)
    restore_state(quantized, program.state)  # the file starts from the values that the user's buffers had
    shapes = program.dynamic_shapes
    inputs = encode(program.example_inputs, input_storages(quantized, plan))
    with torch.no_grad():
        exported = torch.export.export(quantized, inputs, dynamic_shapes=shapes, strict=False)
    _views(exported)
    turn_outputs(exported, [n.name in plan.channels_last for n in output_nodes(program.module)])
    return exported


def _views(exported: torch.export.ExportedProgram) -> None:
    """A reshape that is a view is called one, so that nothing has to be traced to find out.

    Where the numbers lie otherwise it stays: as a copy and a view, one of them would stand between the roundings alone.
    """
    aten = torch.ops.aten
    for node in [n for n in exported.graph.nodes if n.target is aten.reshape.default]:
        x, shape = value_of(node.args[0]), value_of(node).shape
        if not has_symbols(x.shape) and not has_symbols(shape) and _can_view(x, shape):
            node.target = aten.view.default
    exported.graph_module.recompile()


def _can_view(x: torch.Tensor, shape: Any) -> bool:
    try:
        x.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _own_dequantizes(quantized: GraphModule) -> None:
    """One dequantize a reader: XNNPACK's layout pass hands what one reader needs in another layout to all of them."""
    for node in [n for n in quantized.graph.nodes if "dequantize_per" in str(n.target)]:
        for user in list(node.users)[1:]:
            with quantized.graph.inserting_after(node):
                user.replace_input_with(node, quantized.graph.node_copy(node))
    quantized.recompile()


def _to_edge(exported: torch.export.ExportedProgram, target: Target) -> Any:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    with target.lowering(), quick():
        edge = to_edge_transform_and_lower(exported, partitioner=target.partitioners(), compile_config=config)
        return _opened(edge, target)


def _opened(edge: Any, target: Target) -> Any:
    """What was closed, opened for its owners now that the target has had its turn."""
    open_edge(edge.exported_program())
    for backend in target.beside:
        edge = edge.to_backend(backend.partitioner())
    return edge


def _serialise(edge: Any, program: Program, target: Target) -> bytes:
    import executorch.kernels.quantized  # noqa: F401  declares what converts inputs and outputs on the host
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    # Without this a cache that starts non-zero starts as whatever memory held.
    names = ["b_" + n.replace(".", "_") for n in program.state]
    passes = [InitializedMutableBufferPass(names)] if names else []
    config = ExecutorchBackendConfig(passes=passes, segment_alignment=target.alignment)
    with quick():
        return bytes(edge.to_executorch(config).buffer)


@contextlib.contextmanager
def _reasons() -> Iterator[dict[str, str]]:
    """What the partitioner says of each op it leaves, caught from its own log."""
    found: dict[str, str] = {}

    class Catch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            node, reason = getattr(record.msg, "node", None), getattr(record.msg, "reason", None)
            if node is not None and reason:
                found.setdefault(node.name, str(reason))

    # Partitioners only: at this level a backend's serialiser writes its graphs into the current folder.
    names = [n for n in list(logging.root.manager.loggerDict) if n.startswith("executorch") and "partition" in n]
    loggers = [logging.getLogger(n) for n in names]
    with contextlib.ExitStack() as stack:
        for logger in loggers:
            stack.enter_context(_listening(logger, Catch()))
        yield found


@contextlib.contextmanager
def _listening(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
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


def _delegates(graph: GraphModule, files: Mapping[str, Files]) -> tuple[Delegate, ...]:
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and "call_delegate" in str(n.target)]
    return tuple(_delegate(graph, n, files) for n in calls)


def _delegate(graph: GraphModule, node: Node, files: Mapping[str, Files]) -> Delegate:
    lowered = getattr(graph, str(node.args[0].target))  # type: ignore[union-attr]
    ops = [n for n in lowered.original_module.graph.nodes if n.op == "call_function"]
    kinds = [_op_name(n) for n in ops if n.target.__name__ != "getitem" and "quantize_per" not in str(n.target)]
    inputs = tuple(tensor_info(a) for a in node.args[1:] if isinstance(a, Node))
    outputs = tuple(tensor_info(u) for u in node.users if u.op == "call_function")
    name = digest(lowered.processed_bytes)
    return Delegate(lowered.backend_id, len(kinds), inputs, outputs, tuple(kinds), name, files.get(name, {}))


def tensor_info(node: Node) -> TensorInfo:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return TensorInfo(node.name, type(val).__name__, ())
    shape = tuple(d if isinstance(d, int) else str(d) for d in val.shape)
    return TensorInfo(node.name, str(val.dtype).removeprefix("torch."), shape, layout_of(val))


def _host_ops(graph: GraphModule, target: Target, reasons: dict[str, str]) -> tuple[HostOp, ...]:
    nodes = [n for n in graph.graph.nodes if n.op == "call_function" and _is_host_op(n)]
    return tuple(_host_op(n, target, reasons) for n in nodes)


def _is_host_op(node: Node) -> bool:
    name = str(node.target)
    if "call_delegate" in name or getattr(node.target, "__name__", "") == "getitem":
        return False
    return not (_is_boundary_quantize(node) or "sym_size" in name or "sym_constrain" in name)


def _is_boundary_quantize(node: Node) -> bool:
    """Conversions of a graph input or of a graph output are the interface, not work left behind."""
    if "quantize_per" not in str(node.target):
        return False
    return all(u.op == "output" for u in node.users) or all(n.op == "placeholder" for n in node.all_input_nodes)


def _host_op(node: Node, target: Target, reasons: dict[str, str]) -> HostOp:
    op = _op_name(node)
    reason = reasons.get(node.name) or f"{target.backend} has no kernel for {op}"
    if node.meta.get(OWNED):
        reason = f"{' or '.join(b.name for b in target.beside)} owns it, and its partitioner did not take it"
    hint = target.hints.get(
        op.split(".")[0], "rewrite it with ops the backend has, or accept the extra hop to the host"
    )
    return HostOp(op, node.name, source_of(node), reason, hint)


def _op_name(node: Node) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return name.removeprefix("aten.")


def _boundary(program: Program, plan: Plan, exported: torch.export.ExportedProgram) -> Boundary:
    """Types and scales from the plan, layouts from the program itself."""
    module = program.module
    inputs = [tensor_info(n) for n in module.graph.nodes if n.op == "placeholder"]
    outputs = [tensor_info(n) for n in output_nodes(module)]
    taken, given = layouts(exported)
    ins = zip(inputs, input_storages(module, plan), taken, strict=True)
    outs = zip(outputs, output_storages(module, plan), given, strict=True)
    return Boundary(
        tuple(described(replace(info, layout=lies), stored) for info, stored, lies in ins),
        tuple(described(replace(info, layout=lies), stored) for info, stored, lies in outs),
    )
