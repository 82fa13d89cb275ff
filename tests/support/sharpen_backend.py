"""A backend for one op, ingot_test_backends::sharpen: partitioner, payload, executor, and a net that calls it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

torch.library.define("ingot_test_backends::sharpen", "(Tensor x, float amount) -> Tensor")


@torch.library.impl("ingot_test_backends::sharpen", "CompositeExplicitAutograd")
def sharpen(x: torch.Tensor, amount: float) -> torch.Tensor:
    return x + amount * (x - x.mean((2, 3), keepdim=True))


def preprocess(edge_program: Any) -> bytes:
    """The payload: the delegate's ops in order, with their numeric arguments."""
    calls = [n for n in edge_program.graph.nodes if n.op == "call_function"]
    return json.dumps([[_name(n), [a for a in n.args[1:] if isinstance(a, (int, float))]] for n in calls]).encode()


def _name(node: Any) -> str:
    return str(node.target._schema.name).rpartition("::")[2]


@cache
def takes() -> Any:
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

    class TestBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
            return PreprocessResult(preprocess(edge_program))

    class Takes(Partitioner):
        """Takes one op with its Q/DQ."""

        backend = TestBackend  # keeps the class alive: ExecuTorch finds it by name

        def __init__(self, op: str) -> None:
            self.op = op

        def partition(self, exported_program: Any) -> PartitionResult:
            tags = {}
            for i, node in enumerate(n for n in exported_program.graph.nodes if self.is_mine(n)):
                around = [*node.all_input_nodes, *node.users]
                rounding = [n for n in around if n.op == "call_function" and "quantize_per_tensor" in str(n.target)]
                tags[tag := f"mine{i}"] = DelegationSpec("TestBackend", [])
                for member in (node, *rounding):
                    member.meta["delegation_tag"] = tag
            return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

        def is_mine(self, node: Any) -> bool:
            return node.op == "call_function" and hasattr(node.target, "_schema") and _name(node) == self.op

    return Takes


SEEN: list[list[Any]] = []


def run(payload: bytes, batches: list[list[np.ndarray]], outputs: int) -> list[list[np.ndarray]]:
    """The executor."""
    steps = json.loads(payload)
    SEEN.append(steps)
    return [[_run(steps, torch.from_numpy(x)).contiguous().numpy() for x in arrays] for arrays in batches]


def _run(steps: list[Any], x: torch.Tensor) -> torch.Tensor:
    ops = torch.ops.quantized_decomposed
    for name, numbers in steps:
        if name == "dequantize_per_tensor":
            x = ops.dequantize_per_tensor(x, *numbers[:4], x.dtype)
        elif name == "quantize_per_tensor":
            x = ops.quantize_per_tensor(x, *numbers[:4], torch.int8)
        else:
            x = (
                torch.ops.ingot_test_backends.sharpen(x, numbers[0])
                if name == "sharpen"
                else torch.nn.functional.gelu(x)
            )
    return x


class Sharpened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.ops.ingot_test_backends.sharpen(self.one(x), 0.5))


IMAGES = [(torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(i)),) for i in range(6)]
