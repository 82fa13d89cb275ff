"""Vulkan: one delegate, its serialised graph decoded and interpreted; dtypes follow the computation."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.config.recipe import Recipe
from ingot.core.fx import calls
from ingot.llm.checkpoint import Checkpoint
from ingot.llm.pipeline import cast_decoder
from ingot.patches.vulkan import vulkan_lowering
from ingot.rewrite.apply import rewrite_for
from ingot.runtime.segmented_run import read_pte, segments_of
from ingot.targets.edge_ops import decomposed_nodes
from ingot.targets.vulkan.graph import OpCall, VulkanGraph, decode_delegate, torch_dtype
from ingot.targets.vulkan.interpreter import DelegateInterpreter, check_registered
from ingot.targets.vulkan.partitioner_query import taken_by_vulkan
from ingot.targets.vulkan.target import BACKEND, EXECUTED_ON, VULKAN
from ingot.verify.check import run_artefact, run_graph, run_quantized
from ingot.verify.metrics import measure
from tests.support.decoders import LetterTokenizer, outlier_decoder, tiny_decoder
from tests.support.vulkan import graphs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 96, bias=False), nn.Linear(96, 64)
        self.embed = nn.Embedding(40, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return x + self.down(nn.functional.silu(self.up(x)))


TOKENS = [(torch.randint(0, 40, (1, 5), generator=torch.Generator().manual_seed(i)),) for i in range(4)]


def cast(model: nn.Module, weights: Any = "4w", **how: Any) -> ingot.Casting:
    return ingot.cast(model.eval(), TOKENS[0], target="vulkan", weights=weights, calibration=TOKENS, **how)


@pytest.mark.parametrize("scheme", ["4w", "8da4w"])
def test_a_decoder_is_one_delegate(scheme: str) -> None:
    """Nothing is left to the host, in either method; the bytes compute the quantized graph; no bfloat16."""
    found = Checkpoint(tiny_decoder().to(torch.bfloat16).to(torch.float32), LetterTokenizer(), "tiny")
    texts = ["a small text to round weights with, longer than a stride of it"]
    casting, _ = cast_decoder(found, target="vulkan", weights=scheme, context=48, texts=texts)
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    assert casting.check.executed_on == EXECUTED_ON
    assert "no shader ran" in EXECUTED_ON
    assert min(o.faithful_db for o in casting.check.outputs) > 100
    assert any("method prefill: 1 delegate, 0 host ops" in n for n in casting.notes)
    held = {
        torch_dtype(v)
        for m in ("forward", "prefill")
        for g in graphs(casting.pte, m)
        for v in g.values
        if hasattr(v, "dims")
    }
    assert held <= {torch.float32, torch.uint8, torch.int8, torch.int32}
    codes = {bytes(t.numpy()) for g in graphs(casting.pte) for t in g.constants.values() if t.dtype == torch.uint8}
    assert len(codes) == len(casting.layers) - 1  # the embedding is tied to the head, and stored once


def test_norms_stay_one_shader_when_the_residual_stream_is_rotated() -> None:
    found = Checkpoint(outlier_decoder(), LetterTokenizer(), "tiny")
    casting, _ = cast_decoder(found, target="vulkan", weights="4w", context=48, texts=["a text to round weights with"])
    names = [c.name for g in graphs(casting.pte) for c in g.calls]
    assert names.count("et_vk.rms_norm.default") == 5
    assert "aten.rsqrt.default" not in names
    assert names.count("aten.linear.default") == 1  # the last norm's gains, so that the head stays tied to its table


def test_rounding_before_or_after_the_cast_gives_the_same_bytes() -> None:
    halves = Net().to(torch.bfloat16)
    kept = {k: v.clone() for k, v in halves.state_dict().items()}
    stored, computed = cast(halves), cast(Net().to(torch.bfloat16).to(torch.float32))
    assert stored.pte == computed.pte
    assert "stored in bfloat16, computed in float32" in stored.notes
    assert all(torch.equal(v, kept[k]) for k, v in halves.state_dict().items())  # the user's model is as it was
    assert halves.up.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("order", ["cast, then quantize", "quantize, then cast"])
@pytest.mark.parametrize("scheme", ["4w", "8da4w"])
def test_a_model_that_torchao_quantized(order: str, scheme: str) -> None:
    """Its integers are recovered and kept, whichever came first, the conversion or the quantization."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    how: dict[str, Any] = {"weight_dtype": torch.int4}  # type: ignore[attr-defined]
    config = (
        IntxWeightOnlyConfig(granularity=PerGroup(32), **how)
        if scheme == "4w"
        else Int8DynamicActivationIntxWeightConfig(weight_granularity=PerGroup(32), **how)
    )
    model = Net().to(torch.bfloat16)
    steps = [lambda: quantize_(model, config), lambda: model.to(torch.float32)]
    for step in steps if order.startswith("quantize") else steps[::-1]:
        step()
    casting = cast(model, scheme)
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    # Only the embedding, which torchao left alone, is rounded here; scales are held as bfloat16.
    assert casting.check.outputs[0].sqnr_db > 20
    plain = cast(model, {"scheme": scheme, "method": "nearest"})
    assert plain.pte == casting.pte  # nothing is left to decide


def test_a_dtype_fixed_at_quantization_is_refused() -> None:
    """Quantized in bfloat16, unwrapped, then converted: dequantize still returns bfloat16. The stock flow lowers that."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_
    from torchao.utils import unwrap_tensor_subclass

    model = Net().to(torch.bfloat16)
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))  # type: ignore[attr-defined]
    frozen = unwrap_tensor_subclass(model).to(torch.float32)
    with pytest.raises(ingot.IngotError, match=r"does not run.*before unwrap_tensor_subclass"):
        cast(frozen)


def test_dynamic_sequence_length() -> None:
    many = torch.export.Dim("many", min=2, max=16)
    casting = cast(Net(), dynamic_shapes=({1: many},))
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    longer = [(torch.randint(0, 40, (1, n)),) for n in (2, 7, 16)]
    check = ingot.verify(casting, longer)
    assert check.passed
    assert check.outputs[0].faithful_db > 80


class Place(nn.Module):
    """A row of a table, by a position that is read at run time."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(16, 64))
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        at: Any = position[0].item()
        torch._check(at >= 0)
        torch._check(at < 16)
        return self.linear(x + self.table.narrow(0, at, 1))


@pytest.mark.parametrize(("target", "scheme"), [("vulkan", "4w"), ("xnnpack", "8da4w")])
def test_a_position_read_at_run_time(target: str, scheme: str) -> None:
    """`input_pos.item()` and narrow: the constraints survive retracing."""
    torch.manual_seed(0)
    batches = [(torch.randn(1, 64), torch.tensor([i])) for i in (0, 3, 15)]
    casting = ingot.cast(Place().eval(), batches[0], target=target, weights=scheme, calibration=batches)
    assert len(casting.delegates) <= 2
    assert casting.check.outputs[0].faithful_db > 40


class Cached(nn.Module):
    """A decoder with a KV cache inside, updated in one of the three usual ways."""

    table: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.embed, self.norm = way, nn.Embedding(40, 64), nn.RMSNorm(64)
        self.qkv, self.out, self.head = nn.Linear(64, 192), nn.Linear(64, 64), nn.Linear(64, 40, bias=False)
        self.register_buffer("table", torch.randn(16, 64))
        self.register_buffer("keys", torch.zeros(1, 2, 16, 32))
        self.register_buffer("values", torch.zeros(1, 2, 16, 32))

    def forward(self, token: torch.Tensor, input_pos: torch.Tensor) -> torch.Tensor:
        embedded = self.embed(token) + self._place(input_pos)
        q, k, v = (t.view(1, -1, 2, 32).transpose(1, 2) for t in self.qkv(self.norm(embedded)).chunk(3, -1))
        self._keep(input_pos, k, v)
        mask = torch.where(torch.arange(16) <= input_pos[:, None], 0.0, -1e9)
        shares = torch.softmax(q @ self.keys.transpose(2, 3) * 32**-0.5 + mask, -1)
        return self.head(embedded + self.out((shares @ self.values).transpose(1, 2).reshape(1, -1, 64)))

    def _place(self, input_pos: torch.Tensor) -> torch.Tensor:
        return self.table.narrow(0, self._number(input_pos), 1) if self.way == "narrow" else self.table[input_pos]

    def _keep(self, input_pos: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        for kept, new in ((self.keys, k), (self.values, v)):
            if self.way == "index_copy":
                kept.index_copy_(2, input_pos, new)
            elif self.way == "assignment":
                kept[:, :, input_pos] = new
            else:
                kept.narrow(2, self._number(input_pos), 1).copy_(new)

    def _number(self, input_pos: torch.Tensor) -> int:
        at: Any = input_pos[0].item()
        torch._check(at >= 0)
        torch._check(at < 16)
        return at


@pytest.mark.parametrize(
    ("way", "scheme"), [("index_copy", "4w"), ("assignment", "8da4w"), ("narrow", "4w"), ("narrow", "8da4w")]
)
def test_a_kv_cache_inside_the_program(way: str, scheme: str) -> None:
    """One delegate, token by token as in eager mode; a run starts from the initial buffers."""
    steps = [(torch.tensor([[t]]), torch.tensor([i])) for i, t in enumerate([3, 17, 5, 5, 30, 12])]
    casting = ingot.cast(Cached(way).eval(), steps[0], target="vulkan", weights=scheme, calibration=steps)
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    made, again = (run_artefact(casting.pte, casting.evidence, steps) for _ in range(2))
    graph, eager = run_quantized(casting.evidence, steps), Cached(way).eval()
    with torch.no_grad():
        for (logits,), (wanted,), (second,), step in zip(made, graph, again, steps, strict=True):
            torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
            assert measure([eager(*step)], [logits]).sqnr_db > 14
            assert torch.equal(logits, second)
    alone = run_artefact(casting.pte, casting.evidence, steps[-1:])[0][0]
    assert not torch.allclose(alone, made[-1][0], atol=1e-2)  # it does read what came before


class Counted(nn.Module):
    """Two mutable buffers of different types with nonzero initial values; one is read before and after it is written."""

    total: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 64)
        self.register_buffer("total", torch.full((1, 64), 2.0))
        self.register_buffer("calls", torch.tensor([3]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = self.total.clone()
        self.total += self.linear(x)
        self.calls += 1
        return self.total * before, self.calls * 2


def test_mutable_buffers_stay_outside_the_delegate() -> None:
    """The stock partitioner takes mutable buffers into the delegate, whose call then has too few outputs."""
    batches = [(torch.randn(1, 64, generator=torch.Generator().manual_seed(i)),) for i in range(4)]
    casting = ingot.cast(Counted().eval(), batches[0], target="vulkan", weights="4w", calibration=batches)
    made = run_artefact(casting.pte, casting.evidence, batches)
    assert [int(o[1]) for o in made] == [8, 10, 12, 14]
    assert casting.check.outputs[0].faithful_db > 100
    file = read_pte(casting.pte)
    plan = file.program.execution_plan[0]
    called = [i.instr_args for i in plan.chains[0].instructions]
    for piece in (p for p in segments_of(file.program, {BACKEND}) if p.payload):
        graph = decode_delegate(piece.payload, file.named_data)
        assert len(piece.instructions[0].instr_args.args) == len(graph.inputs) + len(graph.outputs)
    assert [plan.operators[c.op_index].name for c in called if hasattr(c, "op_index")] == ["aten::copy_"] * 2


class Written(nn.Module):
    kept: torch.Tensor

    def __init__(
        self, write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None], shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("kept", torch.randn(shape))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.write(self.kept, x, at)
        return self.kept + 0.0


def _several(kept: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    kept.index_copy_(1, at, x)


def _assigned(kept: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    kept[:, at] = x


def _from_number(kept: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    kept[:, 2:5] = x


def _from_end(kept: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    kept[:, -3:] = x


@pytest.mark.parametrize("write", [_several, _assigned, _from_number, _from_end])
@pytest.mark.parametrize("many", [1, 3])
def test_index_put_becomes_where(write: Any, many: int) -> None:
    """For every dimension, one row and several rows, negative indices."""
    x, shape = torch.randn(2, many if write in (_several, _assigned) else 3, 2, 4), (2, 8, 2, 4)
    program = ingot.capture(Written(write, shape).eval(), (x, torch.tensor([1, 7, 4][:many])))
    legal = rewrite_for(program, VULKAN, Recipe())
    assert any(r.startswith("index-put-as-where") for r in legal.rewrites)
    gone = {torch.ops.aten.index_put.default, torch.ops.aten.slice_scatter.default}
    assert not gone & {n.target for n in calls(legal.program.module)}
    for places in [[1, 7, 4], [6, 0, 2]] + ([[-1, 2, -8]] if write is _assigned else []):
        given = (torch.randn_like(x), torch.tensor(places[:many]))
        wanted = run_graph(program.module, [given], program.state)[0][0]
        assert torch.equal(run_graph(legal.program.module, [given], program.state)[0][0], wanted)


def test_a_write_at_a_position_read_at_run_time() -> None:
    def after(kept: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
        number: Any = at[0].item()
        torch._check(number >= 0)
        torch._check(number < 4)
        kept.narrow(1, number + 1, 3).copy_(x)

    x = torch.randn(2, 3, 2, 4)
    program = ingot.capture(Written(after, (2, 8, 2, 4)).eval(), (x, torch.tensor([1])))
    legal = rewrite_for(program, VULKAN, Recipe())
    assert torch.ops.aten.slice_scatter.default not in {n.target for n in calls(legal.program.module)}
    for place in (0, 3):
        made, wanted = (
            run_graph(p.module, [(x, torch.tensor([place]))], p.state)[0][0] for p in (legal.program, program)
        )
        assert torch.equal(made, wanted)


def test_a_slice_with_a_length_read_at_run_time_is_refused() -> None:
    """Capture succeeds; ExecuTorch's passes for Vulkan need the length, which is known only at run time."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, upto: torch.Tensor) -> torch.Tensor:
            number: Any = upto[0].item()
            torch._check(number >= 0)
            torch._check(number < 15)
            part = self.linear(x).narrow(1, 0, number + 1)
            return torch.softmax(part @ part.transpose(1, 2), -1).view(1, 1, number + 1, -1).sum(-1)

    batch = (torch.randn(1, 16, 64), torch.tensor([3]))
    with pytest.raises(ingot.LowerError, match="vulkan refused the program"):
        ingot.cast(Part().eval(), batch, target="vulkan", weights="4w", calibration=[batch])


def test_host_ops_have_the_partitioners_reason() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).sum(1)

    x = torch.randn(1, 3, 4, 5)
    casting = ingot.cast(Sum(), (x,), target="vulkan", calibration=[(x,)], recipe={"quantize": False})
    assert [(o.op, o.reason) for o in casting.host_ops] == [
        ("sum.dim_IntList", "Vulkan's partitioner: op args not supported")
    ]


@pytest.mark.parametrize(
    "weights", ["8w", "8da8w", {"scheme": "4w", "head_bits": 8}, {"scheme": "4w", "most_bytes": 10**6}]
)
def test_what_does_not_fuse_is_refused(weights: Any) -> None:
    with pytest.raises(ingot.PlanError, match=r"vulkan does not support.*4-bit"):
        cast(Net(), weights)


def test_integer_activations_are_not_offered() -> None:
    with pytest.raises(ingot.PlanError, match="not offered with integer activations"):
        ingot.cast(Net().eval(), TOKENS[0], target="vulkan", calibration=TOKENS)
    whole = ingot.cast(Net().eval(), TOKENS[0], target="vulkan", calibration=TOKENS, recipe={"quantize": False})
    assert whole.check.outputs[0].sqnr_db > 100


def test_ops_without_a_shader_are_refused() -> None:
    graph = VulkanGraph((OpCall("quantized_decomposed.quantize_per_token.default", (), 0),), (), {}, (), ())
    with pytest.raises(ingot.ArtefactError, match=r"without a shader.*quantize_per_token"):
        check_registered(graph)


def test_ops_without_a_shader_run_on_the_host() -> None:
    class Compared(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(torch.logical_not(x > 0.2), x * 2, torch.log10(x.abs() + 1))

    x = torch.randn(2, 6)
    casting = ingot.cast(Compared(), (x,), target="vulkan", calibration=[(x,)], recipe={"quantize": False})
    assert {"gt.Scalar", "logical_not.default", "log10.default"} <= {h.op for h in casting.host_ops}
    assert casting.check.outputs[0].sqnr_db > 100


def test_infinite_numbers_in_a_delegate() -> None:
    """flatc writes them as inf and nan, which are no JSON."""

    class Clamped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.clamp(x, -1.0, math.inf) * 2

    x = torch.randn(2, 6)
    casting = ingot.cast(Clamped(), (x,), target="vulkan", calibration=[(x,)], recipe={"quantize": False})
    assert len(casting.delegates) == 1
    assert casting.check.outputs[0].sqnr_db > 100


def test_a_damaged_delegate() -> None:
    with pytest.raises(ingot.ArtefactError, match="cannot be read"):
        decode_delegate(b"VK00" + bytes(64), None)
    payload = next(p.payload for p in segments_of(read_pte(cast(Net()).pte).program, {BACKEND}) if p.payload)
    with pytest.raises(ingot.ArtefactError, match="constant of the Vulkan delegate is missing"):
        decode_delegate(payload, None)


class Apply(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: nn.functional.adaptive_max_pool2d(x, (2, 3)), (1, 4, 7, 9)),
        (lambda x: nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic"), (1, 2, 6, 5)),
        (lambda x: nn.functional.max_pool3d(x, 2), (1, 2, 4, 6, 4)),
        (lambda x: torch.fft.rfft(x).abs(), (1, 4, 8)),
        (lambda x: x.median(-1).values, (2, 3, 7)),
        (lambda x: torch.cummax(x, 1).values, (2, 5)),
    ],
    ids=["adaptive max pool", "bicubic", "pool 3d", "fourier", "median", "running maximum"],
)
def test_ops_that_no_kernel_runs_are_rewritten(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    casting = ingot.cast(Apply(function).eval(), (x,), target="vulkan", recipe={"quantize": False}, calibration=[(x,)])
    assert casting.check.passed
    assert casting.delegates


def test_a_query_of_one_op_agrees_with_the_partitioner() -> None:
    """Ops in the delegate by the query are there after lowering, and no others."""

    def several(x: torch.Tensor) -> Any:
        return x.exp(), x.log10(), x.sum(-1), x.fmod(0.7), torch.nn.functional.conv2d(x, x.new_ones(2, 3, 2, 2))

    for batch in (1, 2):  # Vulkan's convolution takes a batch of one
        program = ingot.capture(Apply(several).eval(), (torch.randn(batch, 3, 4, 4),))
        asked = {str(p.target) for n in calls(program.module) for p in decomposed_nodes(n) if not taken_by_vulkan(p)}
        casting = ingot.cast(
            Apply(several).eval(), (torch.randn(batch, 3, 4, 4),), target="vulkan", recipe={"quantize": False},
            calibration=[(torch.randn(batch, 3, 4, 4),)], on_mismatch="keep",
        )  # fmt: skip
        assert {f"aten.{h.op}" for h in casting.host_ops} == asked


def test_lowering_leaves_the_level_of_the_root_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing Vulkan's modules for the first time sets it."""
    root = logging.getLogger()
    before = root.level
    for name in [n for n in sys.modules if n.startswith("executorch.backends.vulkan.serialization")]:
        monkeypatch.delitem(sys.modules, name)
    with vulkan_lowering():
        assert root.level == logging.WARNING
    assert root.level == before


class NanMeans(nn.Module):
    """Their decomposition reads a value and its alias; both leave the delegate."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x)
        return y.nanmean(-1, keepdim=True), torch.erfc(x).nansum(-2)


def test_a_value_and_its_alias_are_one_output_of_a_delegate() -> None:
    batches = [(torch.randn(2, 3, 4, 4),) for _ in range(2)]
    casting = ingot.cast(NanMeans(), batches[0], target="vulkan", calibration=batches, recipe={"quantize": False})
    assert casting.check.passed


def test_a_payload_with_other_outputs_than_the_program_takes_is_refused() -> None:
    file = read_pte(cast(Net()).pte)
    payload = next(p.payload for p in segments_of(file.program, {BACKEND}) if p.payload)
    with pytest.raises(ingot.IngotError, match="gives 1 outputs, the program takes 2"):
        DelegateInterpreter(file.named_data)(payload, [[]], 2)


class Empty(nn.Module):
    """A program over no elements, with a constant of none and a host op between two delegates."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.threshold(x.relu(), 0.3, 0.0)
        return y @ y.mT, y + torch.zeros(2, 0, 3)


def test_tensors_without_elements_run_by_segments() -> None:
    batches = [(torch.randn(2, 0, 3),) for _ in range(2)]
    casting = ingot.cast(Empty(), batches[0], target="vulkan", calibration=batches, recipe={"quantize": False})
    assert casting.check.passed
