"""With and without speed patches the file is the same, byte for byte, except debug handles."""

from __future__ import annotations

import contextlib
import importlib

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.passes.infra.pass_base import PassResult

import ingot
from ingot.patches.decompose import _trace
from ingot.patches.speed_contexts import fast_lowering
from tests.support.architectures import IMAGES, NETS, SEQUENCES
from tests.support.models import CASES, case, settled
from tests.support.requirements import need

# `ingot.lower` and `ingot.capture` are functions too: import the modules by name.
EDGE = importlib.import_module("ingot.lower.edge")
EXPORT_QUANTIZED = importlib.import_module("ingot.lower.export_quantized")
CAPTURE_EXPORT = importlib.import_module("ingot.capture.export")


def both_ways(monkeypatch: pytest.MonkeyPatch, program: ingot.Program, plan: ingot.Plan) -> tuple[bytes, bytes]:
    from executorch.exir.passes.debug_handle_generator_pass import DebugHandleGeneratorPass

    monkeypatch.setattr(DebugHandleGeneratorPass, "call", _one_debug_handle)
    fast = ingot.lower(program, plan).pte
    monkeypatch.setattr(EDGE, "fast_lowering", contextlib.nullcontext)
    return fast, ingot.lower(program, plan).pte


def _one_debug_handle(_: object, module: torch.fx.GraphModule) -> PassResult:
    """One debug handle for all: per-op decomposition gives the parts of an op one handle, torch's gives several."""
    for node in module.graph.nodes:
        node.meta["debug_handle"] = 7
    return PassResult(module, True)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (i % 2)) for i, n in enumerate(CASES)])
def test_the_same_file_for_xnnpack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = case(name)
    program = ingot.capture(model, batches[0])
    fast, plain = both_ways(monkeypatch, program, ingot.plan(program, ingot.record(program, batches), "xnnpack"))
    assert fast == plain


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("MobileNetV3", IMAGES),
        pytest.param("DeiT", IMAGES, marks=pytest.mark.long),
        pytest.param("GRU", SEQUENCES, marks=pytest.mark.long),
    ],
)
def test_the_same_file_for_an_npu(name: str, batches: list, monkeypatch: pytest.MonkeyPatch) -> None:
    target = need("ethos-u55-128")
    torch.manual_seed(0)
    program = ingot.capture(settled(NETS[name][0](), batches), batches[0])
    fast, plain = both_ways(monkeypatch, program, ingot.plan(program, ingot.record(program, batches), target))
    assert fast == plain


def test_the_same_file_with_dynamic_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, batches = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), [(torch.randn(4, 8),)]
    program = ingot.capture(net, batches[0], dynamic_shapes=({0: Dim("n", min=2, max=16)},))
    fast, plain = both_ways(monkeypatch, program, ingot.plan(program, ingot.record(program, batches), "xnnpack"))
    assert fast == plain


def test_patches_are_removed_after_an_error() -> None:
    from executorch.exir.pass_base import _ExportPassBase as Base

    held = (torch.fx.GraphModule.recompile, torch.export.ExportedProgram.run_decompositions, Base._fx, Base.call)
    with contextlib.suppress(RuntimeError), fast_lowering():
        assert Base._fx is not held[2]
        raise RuntimeError("while lowering")
    now = (torch.fx.GraphModule.recompile, torch.export.ExportedProgram.run_decompositions, Base._fx, Base.call)
    assert held == now


def test_a_module_that_was_edited_inside_runs_as_edited_outside() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    with fast_lowering():
        module = torch.fx.symbolic_trace(Twice())
        add = next(n for n in module.graph.nodes if n.op == "call_function")
        add.args = (add.args[0], 10)
        module.recompile()
    assert module(torch.ones(1)).item() == 11
    assert "10" in module.code


def test_the_same_file_with_integer_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated blocks share memoized results; blocks of another weight dtype do not."""
    from executorch.exir.passes.debug_handle_generator_pass import DebugHandleGeneratorPass

    torch.manual_seed(0)
    layers = [nn.Linear(32, 32) for _ in range(3)]
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.SiLU()))).eval()
    monkeypatch.setattr(DebugHandleGeneratorPass, "call", _one_debug_handle)
    fast = ingot.cast(net, (torch.randn(4, 32),), target="xnnpack", weights="8da4w").pte
    monkeypatch.setattr(EDGE, "fast_lowering", contextlib.nullcontext)
    monkeypatch.setattr(EXPORT_QUANTIZED, "lift_constants", lambda *_: None)
    assert ingot.cast(net, (torch.randn(4, 32),), target="xnnpack", weights="8da4w").pte == fast


class Words(nn.Module):
    """Inputs named like Python keywords or builtins, an unused op, a value that is returned and read."""

    def forward(self, input: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = (input > 0) & (other > 0)
        torch.sin(input)
        y = input.transpose(0, 1).reshape(-1).to(input.dtype)
        return y, y.neg(), torch.where(both, input, other).neg(), both


def test_capture_op_by_op_gives_the_graph_that_torch_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.export import ExportedProgram

    given = torch.randn(3, 4), torch.randn(3, 4)
    traced = ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", None)  # torch must not trace
    alone = ingot.capture(Words(), given)
    monkeypatch.setattr(ExportedProgram, "run_decompositions", traced)
    _trace_with_torch(monkeypatch)
    assert ingot.capture(Words(), given).fingerprint == alone.fingerprint


@pytest.mark.parametrize("name", CASES)
def test_capture_gives_the_graph_that_torch_traces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = case(name)
    alone = ingot.capture(model, batches[0])
    _trace_with_torch(monkeypatch)
    assert ingot.capture(model, batches[0]).fingerprint == alone.fingerprint


def _trace_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CAPTURE_EXPORT, "decompose_per_op", lambda *_: None)


def test_the_decomposition_of_an_op_reads_both_operands() -> None:
    """Though they share one fake value: that of two equal ops before them."""
    with FakeTensorMode():
        shared = torch.empty(2, 3)
    graph = torch.fx.Graph()
    operands = [graph.placeholder(name) for name in ("x", "y")]
    node = graph.call_function(torch.ops.aten.hypot.default, tuple(operands))
    for each in (*operands, node):
        each.meta["val"] = shared
    parts = _trace(node, torch._decomp.get_decompositions([torch.ops.aten.hypot.default]))
    assert parts is not None
    assert all(operand.users for operand in parts.find_nodes(op="placeholder"))
