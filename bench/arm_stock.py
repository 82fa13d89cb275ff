"""The stock flow for Ethos-U and VGF, as ExecuTorch's Arm examples write it, step by step and timed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import executorch.kernels.quantized  # noqa: F401  the quantize and dequantize around a delegate, for the writer
import torch
from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import EthosUQuantizer, VgfQuantizer, get_symmetric_quantization_config
from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec

from bench.entry import Entry
from bench.stock import Clock, facts, quantized
from ingot.targets.arm.requirements import find_converter
from ingot.targets.base import digest
from ingot.targets.registry import find_target


@dataclass(frozen=True)
class Made:
    """What either flow hands over: the program, each delegate's TOSA by the digest of its payload, and facts."""

    pte: bytes
    digests: list[str]  # one a delegate, in the order of the program
    tosa: dict[str, bytes]
    facts: dict[str, Any]


def cast(entry: Entry, target: str) -> Made:
    """Raises whatever the stock flow raises."""
    clock = Clock()
    spec, quantizer, partitioner = _objects(target)
    with clock("export"):
        module = torch.export.export(entry.model, entry.example_inputs).module(check_guards=False)
    quantizer.set_global(get_symmetric_quantization_config())
    program = quantized(module, quantizer, entry, clock)
    with clock("lower"):
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge_transform_and_lower(program, partitioner=[partitioner(spec)], compile_config=config)
    graph = edge.exported_program().graph_module
    # Before the program is emitted, which rewrites the graph.
    found, digests, files = facts(graph), _digests(graph), find_target(target).lowering.finish(graph)
    with clock("emit"):
        pte = bytes(edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer)
    tosa = {digest: kept["graph.tosa"] for digest, kept in files.items()}
    return Made(pte, digests, tosa, {**found, "timings": clock.seconds})


def _objects(target: str) -> tuple[Any, Any, Any]:
    """Compile spec, quantizer and the class of the partitioner."""
    if target == "vgf":
        find_converter()
        gpu = VgfCompileSpec()
        return gpu, VgfQuantizer(gpu), _dumping(VgfPartitioner)
    npu = EthosUCompileSpec(target)
    return npu, EthosUQuantizer(npu), _dumping(EthosUPartitioner)


def _dumping(base: Any) -> Any:
    """The partitioner itself; only that each delegate's TOSA goes to a folder of its own, not all to one name."""

    class Dumping(base):  # type: ignore[misc,valid-type]
        def partition(self, exported_program: Any) -> Any:
            result = super().partition(exported_program)
            result.partition_tags = {tag: _with_folder(spec) for tag, spec in result.partition_tags.items()}
            return result

    return Dumping


def _with_folder(spec: DelegationSpec) -> DelegationSpec:
    folder = tempfile.mkdtemp(prefix="ingot-bench-tosa-")
    dump = CompileSpec(ArmCompileSpec._DEBUG_ARTIFACT_KEY, folder.encode())
    return DelegationSpec(spec.backend_id, [*spec.compile_specs, dump])


def _digests(graph: torch.fx.GraphModule) -> list[str]:
    calls = [n for n in graph.graph.nodes if "call_delegate" in str(n.target)]
    lowered = [getattr(graph, n.args[0].target) for n in calls]
    return [digest(module.processed_bytes) for module in lowered]
