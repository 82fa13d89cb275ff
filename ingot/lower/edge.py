"""Q/DQ graph -> edge program -> delegates -> .pte, with a reason for every host op."""

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

from ingot.capture.export import Program
from ingot.capture.kv_buffers import POSITIONS, KVBuffers
from ingot.core.artefact import Delegate, HostOp, ProgramIO
from ingot.core.fx import output_nodes
from ingot.core.host_memory import LARGE_TENSOR_BYTES, gc_paused, trim_heap
from ingot.core.versions import install_line
from ingot.errors import IngotError, LowerError, first_sentence
from ingot.lower.bounded_inputs import memory_planning_pass
from ingot.lower.export_quantized import backend_copy, export_quantized
from ingot.lower.host_layouts import make_host_ops_contiguous
from ingot.lower.inferred_sizes import infer_one_size, infer_varying_size
from ingot.lower.kv_buffers import add_kv_buffers, kv_planning_pass
from ingot.lower.no_kernel_error import no_kernel_error
from ingot.lower.opaque_ops import opaque_ops, restore_edge_ops
from ingot.lower.partition_report import (
    collect_refusals,
    delegate_payloads,
    delegates_of,
    host_op_values,
    host_ops_of,
    tensor_info,
)
from ingot.patches.dim_orders import plain_dim_orders
from ingot.patches.speed_contexts import fast_lowering
from ingot.patches.varying_sizes import varying_sizes
from ingot.patches.version_gate import untested_versions, warn_if_untested
from ingot.plan.plan_data import Plan
from ingot.quantize.integer_io import (
    input_qparams,
    is_io_conversion,
    output_qparams,
    with_integer_io,
    with_qparams,
)
from ingot.quantize.memory_format import channels_last_outputs_pass, io_layouts
from ingot.targets.base import Files, Target

MAIN_METHOD = "forward"


@dataclass(frozen=True)
class LoweredMethod:
    """One method of a program after lowering."""

    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: ProgramIO
    host_op_values: Mapping[str, str]  # by name of a host op: the value that it computes
    notes: tuple[str, ...] = ()  # of the target's audit of its delegates


@dataclass(frozen=True)
class LoweredProgram:
    """A .pte and its methods."""

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
    """Lower the Q/DQ graph of `program`; `others` become methods of the same file and share its weights."""
    warn_if_untested()
    parts = {MAIN_METHOD: (program, quantized), **(others or {})}
    with tempfile.SpooledTemporaryFile(LARGE_TENSOR_BYTES) as file:
        methods = _lower_methods(parts, plan, target, file)
        trim_heap(graphs=True)  # the parts of the file and the graphs of all passes are still in memory
        file.seek(0)
        return LoweredProgram(file.read(), methods)


def _lower_methods(
    parts: Mapping[str, tuple[Program, GraphModule]], plan: Plan, target: Target, file: Any
) -> dict[str, LoweredMethod]:
    program = parts[MAIN_METHOD][0]
    constants = dict(program.kv_buffers.metadata) if program.kv_buffers else None
    with opaque_ops() as make_opaque, collect_refusals() as reasons:
        exported = {name: _export_method(*part, plan, target, make_opaque) for name, part in parts.items()}
        channels_last = [n.name in plan.channels_last for n in output_nodes(program.module)]
        with varying_sizes() if program.kv_buffers else contextlib.nullcontext():
            edge, files = _backend_stage(
                "partition", target, lambda: _to_edge(exported, target, channels_last, constants)
            )
    methods = {
        name: _lowered_method(part[0], plan, target, edge.exported_program(name), reasons, files[name])
        for name, part in parts.items()
    }
    if program.kv_buffers is not None:
        methods = {MAIN_METHOD: _with_kv_buffers(methods[MAIN_METHOD], edge, program.kv_buffers, target, reasons)}
    # After the report: serialisation rewrites the graph.
    try:
        _backend_stage("serialise", target, lambda: _serialise(edge, program, plan, target, file))
    except LowerError as e:
        named = (no_kernel_error(e.why or "", m.host_ops, m.host_op_values) for m in methods.values())
        raise next((n for n in named if n is not None), e) from e.__cause__
    return methods


def edge_program(program: Program, quantized: GraphModule, plan: Plan, target: Target) -> torch.export.ExportedProgram:
    """The edge program with its delegates, before serialisation."""
    with opaque_ops() as make_opaque, collect_refusals():
        exported = {MAIN_METHOD: _export_method(program, quantized, plan, target, make_opaque)}
        channels_last = [n.name in plan.channels_last for n in output_nodes(program.module)]
        edge, _ = _backend_stage("partition", target, lambda: _to_edge(exported, target, channels_last))
    found: torch.export.ExportedProgram = edge.exported_program(MAIN_METHOD)
    return found


@dataclass(frozen=True)
class LoweringRecord:
    """A program that was lowered with ExecuTorch's own record of it."""

    pte: bytes
    etrecord: Any  # executorch.devtools.etrecord.ETRecord
    payloads: tuple[bytes, ...]  # of the delegates, in the order of their calls


def record_lowering(program: Program, quantized: GraphModule, plan: Plan, target: Target) -> LoweringRecord:
    """Lower once more, and keep the exported and the edge program with their debug handles."""
    with opaque_ops() as make_opaque, collect_refusals():
        exported = {MAIN_METHOD: _export_method(program, quantized, plan, target, make_opaque)}
        channels_last = [n.name in plan.channels_last for n in output_nodes(program.module)]
        work: Any = lambda: _to_edge(exported, target, channels_last, record=True)  # noqa: E731
        edge, _ = _backend_stage("partition", target, work)
    payloads = delegate_payloads(edge.exported_program(MAIN_METHOD).graph_module)
    file = io.BytesIO()
    made = _backend_stage("serialise", target, lambda: _serialise(edge, program, plan, target, file))
    return LoweringRecord(file.getvalue(), made.get_etrecord(), payloads)


def _export_method(program: Program, quantized: GraphModule, plan: Plan, target: Target, make_opaque: Any) -> Any:
    whole = backend_copy(program, with_integer_io(quantized, plan), plan, target)
    make_opaque(
        whole, lambda n: target.lowering.owned_by_another(n) or (not plan.integer_io and is_io_conversion(n, plan))
    )
    return _backend_stage("export", target, lambda: export_quantized(program, whole, plan))


def _lowered_method(
    program: Program, plan: Plan, target: Target, lowered: Any, reasons: dict[str, str], files: Mapping[str, Files]
) -> LoweredMethod:
    graph = lowered.graph_module
    delegates, host_ops = delegates_of(graph, files), host_ops_of(graph, target, reasons)
    notes = target.lowering.audit(graph)
    return LoweredMethod(delegates, host_ops, _program_io(program, plan, lowered), host_op_values(graph), notes)


def _with_kv_buffers(
    method: LoweredMethod, edge: Any, kv: KVBuffers, target: Target, reasons: dict[str, str]
) -> LoweredMethod:
    """The KV cache becomes state of the program: tokens and positions in, logits out."""
    lowered = edge.exported_program(MAIN_METHOD)
    shared = add_kv_buffers(lowered, kv)
    io = ProgramIO(method.io.inputs[: POSITIONS + 1], method.io.outputs[:1])
    found = host_ops_of(lowered.graph_module, target, reasons)
    return replace(method, io=io, host_ops=tuple(o for o in found if o.name not in shared))


def _backend_stage(name: str, target: Target, work: Any) -> Any:
    """Run a step of the backend; any exception becomes a LowerError with the original chained."""
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
    """The first exception: pass managers wrap it in others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _to_edge(
    exported: dict[str, torch.export.ExportedProgram],
    target: Target,
    channels_last: list[bool],
    constants: dict[str, Any] | None = None,
    record: bool = False,
) -> Any:
    """The edge program, and by method the files of each delegate. With `record` it carries an ETRecord."""
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    with target.lowering.context(), fast_lowering(), plain_dim_orders():
        passes: Any = target.lowering.edge_passes()
        passes += [channels_last_outputs_pass(channels_last)] if any(channels_last) else []
        passes += [infer_one_size] if any(e.range_constraints for e in exported.values()) else []
        passes += [infer_varying_size] if constants else []
        each = {name: target.lowering.partitioners() for name in exported}
        edge = to_edge_transform_and_lower(exported, passes or None, each, constants, config, generate_etrecord=record)
        edge = _lower_extra_backends(edge, target)
        files = {name: target.lowering.finish(edge.exported_program(name).graph_module) for name in exported}
    contiguous = [target.lowering.backend_id] if target.lowering.contiguous_only else []
    for name in exported:
        make_host_ops_contiguous(edge.exported_program(name), contiguous)
    return edge, files


def _lower_extra_backends(edge: Any, target: Target) -> Any:
    """Restore the opaque ops, then partition for the extra backends that own them."""
    restore_edge_ops(edge.exported_program())
    for backend in target.lowering.extra_backends:
        edge = edge.to_backend(backend.partitioner())
    return edge


def _serialise(edge: Any, program: Program, plan: Plan, target: Target, file: Any) -> Any:
    import executorch.kernels.quantized  # noqa: F401  registers the Q/DQ ops of the host
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    # Without this pass, a buffer that starts non-zero starts with undefined memory.
    names = ["b_" + n.replace(".", "_") for n in program.state]
    passes = [InitializedMutableBufferPass(names)] if names else []
    kv, bounded = program.kv_buffers, program.bounded_dims
    memory = memory_planning_pass(bool(plan.settings.get("caller_owned_inputs")), () if kv else bounded)
    config = ExecutorchBackendConfig(
        passes=passes,
        segment_alignment=target.lowering.alignment,
        memory_planning_pass=kv_planning_pass(kv) if kv else memory,
        run_reinplace_pass=kv is not None,
        remove_view_copy=kv is None,  # a view refuses a base whose size varies
    )
    with fast_lowering(), plain_dim_orders():
        made = edge.to_executorch(config)
        made.write_to_file(file)
    return made


def _program_io(program: Program, plan: Plan, lowered: torch.export.ExportedProgram) -> ProgramIO:
    """Inputs and outputs: dtypes and scales from the plan, layouts from the lowered program."""
    module = program.module
    inputs = [tensor_info(n) for n in module.graph.nodes if n.op == "placeholder"]
    outputs = [tensor_info(n) for n in output_nodes(module)]
    input_layouts, output_layouts = io_layouts(lowered)
    ins = zip(inputs, input_qparams(module, plan), input_layouts, strict=True)
    outs = zip(outputs, output_qparams(module, plan), output_layouts, strict=True)
    return ProgramIO(
        tuple(with_qparams(replace(info, layout=layout), qparams) for info, qparams, layout in ins),
        tuple(with_qparams(replace(info, layout=layout), qparams) for info, qparams, layout in outs),
    )
