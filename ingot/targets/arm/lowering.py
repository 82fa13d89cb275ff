"""From the quantized graph to a program, each delegate's files beside it."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch.fx import GraphModule, Node

from ingot.patches.arm import arm_pass_fixes
from ingot.rewrite import depth_pool
from ingot.targets.arm.decompositions import Decompositions
from ingot.targets.arm.device import Device, compile_spec, partitioner_class
from ingot.targets.arm.fusions import mark, separate
from ingot.targets.arm.gather_rewrite import Selections
from ingot.targets.arm.mask_rewrite import Masks
from ingot.targets.arm.requirements import check_converter
from ingot.targets.base import Files, Lowering, RewriteRule, digest

KEPT = (".tosa", ".csv")  # what the compiler was given, and what it estimates


class ArmLowering(Lowering):
    static_shapes = True

    def __init__(self, device: Device):
        self.device, self.backend_id = device, "VgfBackend" if device.is_gpu else "EthosUBackend"

    def partitioners(self) -> list[Any]:
        return _partitioners(self.device)

    def rules(self) -> Sequence[RewriteRule]:
        return (depth_pool.RULE, Selections(self.device), Decompositions(self.device), Masks(self.device))

    def context(self) -> AbstractContextManager[Any]:
        return arm_pass_fixes()

    def finish(self, graph: GraphModule) -> Mapping[str, Files]:
        return _taken_files(graph)


def _partitioners(device: Device) -> list[Any]:
    import executorch.kernels.quantized  # noqa: F401  the quantize and dequantize around a delegate, for the writer

    if device.is_gpu:
        check_converter()
    return [_marking(device)(compile_spec(device))]


@cache
def _marking(device: Device) -> Any:
    base = partitioner_class(device)

    class Marking(base):  # type: ignore[misc,valid-type]
        """Marks what runs on integers, keeps each delegate's TOSA in a folder of its own, says what it refused."""

        def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
            separate(exported_program.graph)
            mark(exported_program.graph)  # what an op is taken apart into later (a reshape: clone, view) inherits it
            return super().transform_for_pre_decomposition(exported_program)

        def partition(self, exported_program: Any) -> Any:
            mark(exported_program.graph)
            result = super().partition(exported_program)
            result.partition_tags = {t: _dumping(result.partition_tags[t]) for t in _ordered(result, exported_program)}
            _tell(self.refused)
            return result

    return Marking


@dataclass(frozen=True)
class Refusal:
    """A log message from which the lowering reads why an op stays on the host."""

    node: Node
    reason: str


def _tell(refused: dict[Node, str]) -> None:
    logger = logging.getLogger("executorch.backends.arm.tosa.partitioner")
    for node, reason in refused.items():
        logger.debug(Refusal(node, reason))


def _ordered(result: Any, exported_program: Any) -> list[str]:
    """Tags in the order of their first nodes. ExecuTorch's order is that of a set of strings: it varies by process."""
    found = dict.fromkeys(n.meta.get("delegation_tag") for n in exported_program.graph.nodes)
    top = [tag for tag in found if tag in result.partition_tags]
    return [*top, *sorted(result.partition_tags.keys() - set(top))]  # the rest is in branches


def _dumping(spec: Any) -> Any:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import DelegationSpec

    folder = tempfile.mkdtemp(prefix="ingot-tosa-")
    return DelegationSpec(spec.backend_id, [*spec.compile_specs, CompileSpec(_dump_key(), folder.encode())])


def _dump_key() -> str:
    from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec

    return ArmCompileSpec._DEBUG_ARTIFACT_KEY


def _taken_files(graph: GraphModule) -> dict[str, Files]:
    """Take each delegate's files out of its folder, and the folder's name out of the program."""
    found: dict[str, Files] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr" and hasattr(lowered := getattr(graph, str(node.target)), "processed_bytes"):
            found[digest(lowered.processed_bytes)] = _taken(lowered)
    return found


def _taken(lowered: Any) -> Files:
    files: dict[str, bytes] = {}
    for spec in [s for s in lowered.compile_specs if s.key == _dump_key()]:
        folder = Path(spec.value.decode())
        files |= {_plain_name(f): f.read_bytes() for f in folder.rglob("*") if f.suffix in KEPT}
        lowered.compile_specs.remove(spec)
        shutil.rmtree(folder, ignore_errors=True)
    return files | ({"graph.vgf": lowered.processed_bytes} if lowered.backend_id == "VgfBackend" else {})


def _plain_name(file: Path) -> str:
    return "graph.tosa" if file.suffix == ".tosa" else file.name.removeprefix("out_")
