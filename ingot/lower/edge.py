"""Quantized graph -> .pte: exported again, partitioned by the target, every op left on the host with its reason."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from ingot.capture.export import Program, restore_state
from ingot.core.artefact import Delegate, HostOp, ProgramIO
from ingot.core.fx import copied, drop_unused, has_symbols, output_nodes, value_of
from ingot.core.host_memory import LARGE, gc_paused, trim_heap
from ingot.core.versions import install_line
from ingot.errors import IngotError, LowerError, first_sentence
from ingot.lower.bounded_inputs import memory_planning_pass
from ingot.lower.constant_lifting import lift_constants
from ingot.lower.opaque_ops import opaque_ops, restore_edge_ops
from ingot.lower.partition_report import (
    collect_refusals,
    delegates_of,
    host_op_values,
    host_ops_of,
    mark_values,
    tensor_info,
)
from ingot.patches.contexts import fast_lowering
from ingot.patches.gate import untested_versions, warn_if_untested
from ingot.plan.model import Plan
from ingot.quantize.io import (
    input_qparams,
    is_io_conversion,
    output_qparams,
    quantize_inputs,
    with_integer_io,
    with_qparams,
)
from ingot.quantize.memory_format import channels_last_outputs_pass, io_layouts
from ingot.quantize.range_clamps import insert_range_clamps
from ingot.targets.base import Target

MAIN_METHOD = "forward"


@dataclass(frozen=True)
class LoweredMethod:
    """What became of one method of a program."""

    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: ProgramIO
    hosted: Mapping[str, str]  # by the name of a host op, the value that it computes


@dataclass(frozen=True)
class LoweredProgram:
    """A program file and what is in it, by method."""

    pte: bytes
    methods: dict[str, LoweredMethod]


@gc_paused()
def lower_graph(
    program: Program,
    quantized: GraphModule,
    plan: Plan,
    target: Target,
    others: Mapping[str, tuple[Program, GraphModule]] | None = None,
) -> LoweredProgram:
    """Lower the quantized form of `program` for `target`; `others` become methods of the same file, and share its
    weights."""
    warn_if_untested()
    parts = {MAIN_METHOD: (program, quantized), **(others or {})}
    with tempfile.SpooledTemporaryFile(LARGE) as file:
        methods = _lower_methods(parts, plan, target, file)
        trim_heap(graphs=True)  # the file's own pieces are in memory until here, and what passes left behind
        file.seek(0)
        return LoweredProgram(file.read(), methods)


def _lower_methods(
    parts: Mapping[str, tuple[Program, GraphModule]], plan: Plan, target: Target, file: Any
) -> dict[str, LoweredMethod]:
    program = parts[MAIN_METHOD][0]
    with opaque_ops() as close, collect_refusals() as reasons:
        exported = {name: _export_method(*part, plan, target, close) for name, part in parts.items()}
        turned = [n.name in plan.channels_last for n in output_nodes(program.module)]
        edge = _backend_stage("partition", target, lambda: _to_edge(exported, target, turned))
    methods = {
        name: _lowered_method(part[0], plan, target, edge.exported_program(name), reasons)
        for name, part in parts.items()
    }
    # Rewrites the graph: looked at before.
    _backend_stage("serialise", target, lambda: _serialise(edge, program, plan, target, file))
    return methods


def _export_method(program: Program, quantized: GraphModule, plan: Plan, target: Target, close: Any) -> Any:
    whole = _backend_copy(program, with_integer_io(quantized, plan), plan, target)
    close(whole, lambda n: target.lowering.owned_by_another(n) or (not plan.integer_io and is_io_conversion(n, plan)))
    return _backend_stage("export", target, lambda: _export(program, whole, plan))


def _lowered_method(
    program: Program, plan: Plan, target: Target, lowered: Any, reasons: dict[str, str]
) -> LoweredMethod:
    graph = lowered.graph_module
    delegates, host_ops = delegates_of(graph, target.lowering.finish(graph)), host_ops_of(graph, target, reasons)
    return LoweredMethod(delegates, host_ops, _program_io(program, plan, lowered), host_op_values(graph))


def _backend_stage(name: str, target: Target, work: Any) -> Any:
    """Run a step of the backend; whatever it throws becomes a sentence, with the original chained."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return work()
    except IngotError:
        raise
    except Exception as e:
        cause = _root_cause(e)
        raise LowerError(
            f"{target.name} refused the program at '{name}'",
            why=f"{type(cause).__name__}: {first_sentence(cause)}",
            hint=_backend_hint(),
        ) from e


def _backend_hint() -> str:
    if untested := untested_versions():
        return f"install the tested versions: {'; '.join(map(install_line, untested))}"
    return (
        "read the chained error of the backend; if it names an op, keep that op in float: "
        "scopes = [{ op = '…', precision = 'float' }] in a recipe"
    )


def _root_cause(error: BaseException) -> BaseException:
    """What went wrong first: pass managers wrap it in lists of passes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _backend_copy(program: Program, quantized: GraphModule, plan: Plan, target: Target) -> GraphModule:
    """A copy for the backend: ranges kept, what is planned to be float marked as such."""
    quantized = copied(quantized)
    insert_range_clamps(quantized, plan, program.module, target.lowering.owned_by_another)
    drop_unused(quantized)
    mark_values(quantized)
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
    return quantized


def _export(program: Program, quantized: GraphModule, plan: Plan) -> torch.export.ExportedProgram:
    _dequantize_per_consumer(quantized)
    restore_state(quantized, program.state)  # the file starts from the values that the user's buffers had
    shapes = program.dynamic_shapes
    inputs = quantize_inputs(program.example_inputs, input_qparams(quantized, plan))
    exported = None if shapes or program.state else lift_constants(quantized, inputs)
    if exported is None:
        with torch.no_grad():
            exported = torch.export.export(quantized, inputs, dynamic_shapes=shapes, strict=False)
    _reshapes_to_views(exported)
    return exported


def _reshapes_to_views(exported: torch.export.ExportedProgram) -> None:
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


def _dequantize_per_consumer(quantized: GraphModule) -> None:
    """One dequantize a reader: XNNPACK's layout pass hands what one reader needs in another layout to all of them."""
    for node in [n for n in quantized.graph.nodes if "dequantize_per" in str(n.target)]:
        for user in list(node.users)[1:]:
            with quantized.graph.inserting_after(node):
                user.replace_input_with(node, quantized.graph.node_copy(node))
    quantized.recompile()


def _to_edge(exported: dict[str, torch.export.ExportedProgram], target: Target, turned: list[bool]) -> Any:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    with target.lowering.context(), fast_lowering():
        passes: Any = [channels_last_outputs_pass(turned)] if any(turned) else None
        each = {name: target.lowering.partitioners() for name in exported}
        edge = to_edge_transform_and_lower(exported, passes, each, compile_config=config)
        return _lower_extra_backends(edge, target)


def _lower_extra_backends(edge: Any, target: Target) -> Any:
    """What was closed, opened for its owners now that the target has had its turn."""
    restore_edge_ops(edge.exported_program())
    for backend in target.lowering.extra_backends:
        edge = edge.to_backend(backend.partitioner())
    return edge


def _serialise(edge: Any, program: Program, plan: Plan, target: Target, file: Any) -> None:
    import executorch.kernels.quantized  # noqa: F401  declares what converts inputs and outputs on the host
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    # Without this a cache that starts non-zero starts as whatever memory held.
    names = ["b_" + n.replace(".", "_") for n in program.state]
    passes = [InitializedMutableBufferPass(names)] if names else []
    memory = memory_planning_pass(bool(plan.settings.get("lend_inputs")), program.bounded_dims)
    config = ExecutorchBackendConfig(
        passes=passes, segment_alignment=target.lowering.alignment, memory_planning_pass=memory
    )
    with fast_lowering():
        edge.to_executorch(config).write_to_file(file)


def _program_io(program: Program, plan: Plan, lowered: torch.export.ExportedProgram) -> ProgramIO:
    """Types and scales from the plan, layouts from the program itself."""
    module = program.module
    inputs = [tensor_info(n) for n in module.graph.nodes if n.op == "placeholder"]
    outputs = [tensor_info(n) for n in output_nodes(module)]
    taken, given = io_layouts(lowered)
    ins = zip(inputs, input_qparams(module, plan), taken, strict=True)
    outs = zip(outputs, output_qparams(module, plan), given, strict=True)
    return ProgramIO(
        tuple(with_qparams(replace(info, layout=lies), stored) for info, stored, lies in ins),
        tuple(with_qparams(replace(info, layout=lies), stored) for info, stored, lies in outs),
    )
