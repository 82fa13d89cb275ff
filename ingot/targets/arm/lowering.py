"""Lowering for Arm's backend, with the compiler's files of each delegate (TOSA, Vela's reports)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from ingot.patches.arm import arm_pass_fixes
from ingot.targets.arm.device import Device, compile_spec, partitioner_class
from ingot.targets.arm.fusions import resolve_fused_clamps
from ingot.targets.arm.quantized_markers import mark_quantized
from ingot.targets.arm.requirements import check_converter
from ingot.targets.arm.rules import arm_rules
from ingot.targets.arm.unsigned_conversions import convert_through_int8
from ingot.targets.base import Files, Lowering, RewriteRule, digest, report_host_op

KEPT = (".tosa", ".csv")  # the compiler's input and its estimates


class ArmLowering(Lowering):
    static_shapes = True

    def __init__(self, device: Device):
        self.device, self.backend_id = device, "VgfBackend" if device.is_gpu else "EthosUBackend"

    def partitioners(self) -> list[Any]:
        return _partitioners(self.device)

    def rules(self) -> Sequence[RewriteRule]:
        return arm_rules(self.device)

    def context(self) -> AbstractContextManager[Any]:
        return _pass_fixes_and_dump_folder()

    def finish(self, graph: GraphModule) -> Mapping[str, Files]:
        return take_delegate_files(graph)


@contextmanager
def _pass_fixes_and_dump_folder() -> Iterator[None]:
    """Arm's tools write into one folder for each lowering. It is deleted however that ends: `finish` has read it."""
    with tempfile.TemporaryDirectory(prefix="ingot-tosa-", ignore_cleanup_errors=True) as folder, arm_pass_fixes():
        before = _dump_folder.set(folder)
        try:
            yield
        finally:
            _dump_folder.reset(before)


_dump_folder: ContextVar[str] = ContextVar("ingot_dump_folder")


def _partitioners(device: Device) -> list[Any]:
    import executorch.kernels.quantized  # noqa: F401  Q/DQ ops at delegate boundaries

    if device.is_gpu:
        check_converter()
    return [_dumping_partitioner_class(device)(compile_spec(device))]


@cache
def _dumping_partitioner_class(device: Device) -> Any:
    base = partitioner_class(device)

    class DumpingPartitioner(base):  # type: ignore[misc,valid-type]
        """Marks quantized ops, dumps each delegate's TOSA into its own folder, reports refused ops."""

        def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
            resolve_fused_clamps(exported_program.graph)
            convert_through_int8(exported_program.graph)
            mark_quantized(exported_program.graph)  # inherited by what an op is decomposed into: clone and view
            return super().transform_for_pre_decomposition(exported_program)

        def partition(self, exported_program: Any) -> Any:
            mark_quantized(exported_program.graph)
            result = super().partition(exported_program)
            result.partition_tags = {t: _dumping(result.partition_tags[t]) for t in _ordered(result, exported_program)}
            for node, reason in self.refused.items():
                report_host_op(node, reason)
            return result

    return DumpingPartitioner


def _ordered(result: Any, exported_program: Any) -> list[str]:
    """Tags in the order of their first nodes. ExecuTorch's order is that of a set of strings: it varies by process."""
    found = dict.fromkeys(n.meta.get("delegation_tag") for n in exported_program.graph.nodes)
    top = [tag for tag in found if tag in result.partition_tags]
    return [*top, *sorted(result.partition_tags.keys() - set(top))]  # the rest is in branches


def _dumping(spec: Any) -> Any:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import DelegationSpec

    folder = tempfile.mkdtemp(dir=_dump_folder.get())
    return DelegationSpec(spec.backend_id, [*spec.compile_specs, CompileSpec(_dump_key(), folder.encode())])


def _dump_key() -> str:
    from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec

    return ArmCompileSpec._DEBUG_ARTIFACT_KEY


def take_delegate_files(graph: GraphModule) -> dict[str, Files]:
    """Read each delegate's dump folder, also those of branches, and remove the folder's name from the program."""
    delegates: list[Any] = [m for m in graph.modules() if hasattr(m, "processed_bytes")]
    return {digest(m.processed_bytes): _take_files(m) for m in delegates}


def _take_files(lowered: Any) -> Files:
    files: dict[str, bytes] = {}
    for spec in [s for s in lowered.compile_specs if s.key == _dump_key()]:
        folder = Path(spec.value.decode())
        files |= {_plain_name(f): f.read_bytes() for f in folder.rglob("*") if f.suffix in KEPT}
        lowered.compile_specs.remove(spec)
        shutil.rmtree(folder, ignore_errors=True)
    return files | ({"graph.vgf": lowered.processed_bytes} if lowered.backend_id == "VgfBackend" else {})


def _plain_name(file: Path) -> str:
    return "graph.tosa" if file.suffix == ".tosa" else file.name.removeprefix("out_")
