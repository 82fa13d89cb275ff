"""The stock flow, as ExecuTorch's XNNPACK guide writes it, step by step and timed."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.exir import to_edge_transform_and_lower
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from bench.entry import Entry


def cast(entry: Entry) -> tuple[bytes, dict[str, Any]]:
    """(.pte, facts). Raises whatever the stock flow raises."""
    clock = Clock()
    with clock("export"):
        module = torch.export.export(entry.model, entry.example_inputs).module()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    program = quantized(module, quantizer, entry, clock)
    with clock("lower"):
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    found = facts(edge.exported_program().graph_module)  # now: emitting adds an alloc beside each op left on the host
    with clock("emit"):
        pte = edge.to_executorch().buffer
    return pte, {**found, "timings": clock.seconds}


def quantized(module: Any, quantizer: Any, entry: Entry, clock: Clock) -> torch.export.ExportedProgram:
    """What every stock flow does with its quantizer."""
    with clock("prepare"):
        prepared = prepare_pt2e(module, quantizer)
    with clock("calibrate"), torch.no_grad():
        for batch in entry.calibration:
            prepared(*batch)
    with clock("convert"):
        converted = convert_pt2e(prepared)
    with clock("export again"):
        return torch.export.export(converted, entry.example_inputs)


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - started


def facts(graph_module: torch.fx.GraphModule) -> dict[str, Any]:
    """What was delegated and what was left on the host, read off the lowered top-level graph."""
    calls = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    delegates = [n for n in calls if n.target.__name__ == "executorch_call_delegate"]
    host = [n for n in calls if n not in delegates and n.target is not operator.getitem and not _is_io_conversion(n)]
    return {
        "delegates": len(delegates),
        "delegated_ops": sum(_ops_inside(graph_module, n) for n in delegates),
        "host_ops": len(host),
        "host_kinds": _count(_name(n) for n in host),
    }


def _is_io_conversion(node: torch.fx.Node) -> bool:
    """A quantize straight from an input of the program, or a dequantize straight to its outputs."""
    if _name(node).startswith("quantize_per"):
        return node.all_input_nodes[0].op == "placeholder"
    return _name(node).startswith("dequantize_per") and all(user.op == "output" for user in node.users)


def _ops_inside(graph_module: torch.fx.GraphModule, delegate: torch.fx.Node) -> int:
    lowered = getattr(graph_module, str(delegate.args[0].target))
    return sum(n.op == "call_function" for n in lowered.original_module.graph.nodes)


def _name(node: torch.fx.Node) -> str:
    """`expand_copy` of `aten.expand_copy.default`; of `getitem`, itself."""
    return node.target.__name__.split(".")[-2:][0]


def _count(names: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
