"""Vulkan: one delegate, its serialised graph decoded and interpreted; types that follow the computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.llm import checkpoint, road
from ingot.targets.pieces import pieces_of, read
from ingot.targets.vulkan import BACKEND, EXECUTED_ON
from ingot.targets.vulkan.graph import Call, Graph, decoded, dtype_of
from ingot.targets.vulkan.running import refuse_unknown
from tests.test_llm import Letters, tiny


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


def graphs(pte: bytes, method: str = "forward") -> list[Graph]:
    file = read(pte, method)
    return [decoded(p.payload, file.named_data) for p in pieces_of(file.program, {BACKEND}) if p.payload]


@pytest.mark.parametrize("scheme", ["4w", "8da4w"])
def test_a_decoder_is_one_delegate(scheme: str) -> None:
    """Nothing is left to the host, in either method; the bytes compute the quantized graph; no bfloat16."""
    found = checkpoint.Checkpoint(tiny().to(torch.bfloat16).to(torch.float32), Letters(), "tiny")
    texts = ["a small text to round weights with, longer than a stride of it"]
    casting, _ = road.cast(found, target="vulkan", weights=scheme, context=48, texts=texts)
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    assert casting.check.executed_on == EXECUTED_ON
    assert "no shader ran" in EXECUTED_ON
    assert min(o.faithful_db for o in casting.check.outputs) > 100
    assert any("method prefill: 1 delegate, 0 ops on the host" in n for n in casting.notes)
    held = {
        dtype_of(v)
        for m in ("forward", "prefill")
        for g in graphs(casting.pte, m)
        for v in g.values
        if hasattr(v, "dims")
    }
    assert held <= {torch.float32, torch.uint8, torch.int8, torch.int32}
    codes = {bytes(t.numpy()) for g in graphs(casting.pte) for t in g.constants.values() if t.dtype == torch.uint8}
    assert len(codes) == len(casting.layers) - 1  # the embedding is tied to the head, and stored once


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
    """Its own numbers are found on their grids and taken over, whatever came first."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    how = {"weight_dtype": torch.int4}
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


def test_a_frozen_type_is_refused() -> None:
    """Quantized in bfloat16, unwrapped, then cast: dequantize gives bfloat16 for ever. Stock lowers that."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_
    from torchao.utils import unwrap_tensor_subclass

    model = Net().to(torch.bfloat16)
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    frozen = unwrap_tensor_subclass(model).to(torch.float32)
    with pytest.raises(ingot.IngotError, match=r"does not run.*before unwrap_tensor_subclass"):
        cast(frozen)


def test_lengths_that_vary() -> None:
    many = torch.export.Dim("many", min=2, max=16)
    casting = cast(Net(), dynamic_shapes=({1: many},))
    assert len(casting.delegates) == 1
    assert casting.host_ops == ()
    longer = [(torch.randint(0, 40, (1, n)),) for n in (2, 7, 16)]
    check = ingot.verify(casting, longer)
    assert check.passed
    assert check.outputs[0].faithful_db > 80


class Place(nn.Module):
    """A row of a table by a position that is a number at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(16, 64))
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        at = position[0].item()
        torch._check(at >= 0)
        torch._check(at < 16)
        return self.linear(x + self.table.narrow(0, at, 1))


@pytest.mark.parametrize(("target", "scheme"), [("vulkan", "4w"), ("xnnpack", "8da4w")])
def test_a_position_that_is_read(target: str, scheme: str) -> None:
    """`input_pos.item()` and narrow: its constraints stay with it, and nothing dies when it is traced again."""
    torch.manual_seed(0)
    batches = [(torch.randn(1, 64), torch.tensor([i])) for i in (0, 3, 15)]
    casting = ingot.cast(Place().eval(), batches[0], target=target, weights=scheme, calibration=batches)
    assert len(casting.delegates) <= 2
    assert casting.check.outputs[0].faithful_db > 40


@pytest.mark.parametrize(
    "weights", ["8w", "8da8w", {"scheme": "4w", "head_bits": 8}, {"scheme": "4w", "most_bytes": 10**6}]
)
def test_what_does_not_fuse_is_refused(weights: Any) -> None:
    with pytest.raises(ingot.PlanError, match=r"vulkan does not take.*four-bit"):
        cast(Net(), weights)


def test_integer_activations_are_not_offered() -> None:
    with pytest.raises(ingot.PlanError, match="not offered with integer activations"):
        ingot.cast(Net().eval(), TOKENS[0], target="vulkan", calibration=TOKENS)
    whole = ingot.cast(Net().eval(), TOKENS[0], target="vulkan", calibration=TOKENS, recipe={"quantize": False})
    assert whole.check.outputs[0].sqnr_db > 100


def test_what_the_runtime_does_not_register_is_refused() -> None:
    graph = Graph((Call("quantized_decomposed.quantize_per_token.default", (), 0),), (), {}, (), ())
    with pytest.raises(ingot.ArtefactError, match=r"no shader computes.*quantize_per_token"):
        refuse_unknown(graph)


def test_a_damaged_delegate() -> None:
    with pytest.raises(ingot.ArtefactError, match="cannot be read"):
        decoded(b"VK00" + bytes(64), None)
    payload = next(p.payload for p in pieces_of(read(cast(Net()).pte).program, {BACKEND}) if p.payload)
    with pytest.raises(ingot.ArtefactError, match="lacks a constant"):
        decoded(payload, None)
