"""Rotation of the residual stream: found by computing, exact in float, less noise after rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import ingot
from ingot import api
from ingot.config.recipe import recipe_from
from ingot.core.fx import add_constant, copy_graph_module
from ingot.llm.decoder import Decoder
from ingot.llm.pipeline import decode_batches
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from ingot.verify.localize.graph_errors import sqnr_by_value
from ingot.weight_only.cast_weights import cast_weights
from ingot.weight_only.hessian import InputStatistics
from ingot.weight_only.insert_qdq import insert_biases
from ingot.weight_only.options import Weights
from ingot.weight_only.quantize_weights import quantize_weights
from ingot.weight_only.residual_stream import find_residual_stream, rotation_matrix
from ingot.weight_only.rotation import find_rotation
from ingot.weight_only.scheme import find_weight_layers, weight_of
from ingot.weight_only.smoothquant import add_smoothing, find_smoothing
from ingot.weight_only.weight_transforms import NO_TRANSFORM
from tests.support.decoders import ARCHITECTURES, outlier_decoder


def captured(decoder: Decoder, many: int, target: str = "xnnpack") -> GraphModule:
    program = api.capture(decoder, decoder.example_inputs(many))
    return rewrite_for(program, find_target(target), recipe_from(None)).program.module


@pytest.mark.parametrize("target", ["xnnpack", "vulkan"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rotation_is_exact_in_float(architecture: str, target: str) -> None:
    """Without rounding, decode and prefill give the same results; with a tied head and with an untied one."""
    decoder = Decoder(outlier_decoder(architecture), 32).eval()
    for many, head_bits in ((1, 8), (1, 4), (8, 4)):
        module = captured(decoder, many, target)
        layers = find_weight_layers(module, 4, 32, 4, head_bits)
        found = find_rotation(module, layers, (), find_target(target).weight_only.fused_norm_gains)
        assert found is not None
        assert len(found.stream.writers) == 4
        assert len(found.stream.readers) == 11
        assert bool(found.tied) == (head_bits == 4)
        batch = decoder.inputs_for(list(range(5, 5 + many)), decoder.empty_cache(32), 0)
        with torch.no_grad():
            for wanted, made in zip(module(*batch), in_float(module, found, layers)(*batch), strict=True):
                torch.testing.assert_close(made, wanted, rtol=2e-4, atol=2e-4)


def in_float(module: GraphModule, rotation: Any, layers: Any, transforms: Any = None) -> GraphModule:
    """The program with transformed weights that are not rounded."""
    made, transforms = copy_graph_module(module), transforms or rotation.transforms
    rotation.apply_to(made, layers)
    insert_biases(made, transforms)
    for node in [n for n in made.graph.nodes if n.name in transforms]:
        weight = transforms.get(node.name, NO_TRANSFORM).weight(weight_of(node))
        node.update_arg(0 if "embedding" in str(node.target) else 1, add_constant(made, weight, "rotated", node))
    made.recompile()
    return made


def test_the_matrix_is_orthogonal_and_deterministic() -> None:
    torch.testing.assert_close(rotation_matrix(96) @ rotation_matrix(96).T, torch.eye(96), rtol=0, atol=1e-5)
    assert torch.equal(rotation_matrix(96), rotation_matrix.__wrapped__(96))


def test_rotation_reduces_the_noise_of_an_outlier_channel() -> None:
    """In the artefact; rotated values can still be compared with the float program, one by one."""
    decoder = Decoder(outlier_decoder(), 32).eval()
    texts = torch.randint(0, 256, (12, 24), generator=torch.Generator().manual_seed(2)).tolist()
    program = api.capture(decoder, decoder.example_inputs(1))
    batches = [step for tokens in texts for step in decode_batches(decoder, tokens)]
    made = {
        rotate: cast_weights(program, "xnnpack", {"scheme": "8da8w", "rotate": rotate}, batches)
        for rotate in (True, False)
    }
    logits = {rotate: c.check.outputs[0].sqnr_db for rotate, c in made.items()}
    assert logits[True] > logits[False] + 3
    assert len(made[True].delegates) == len(made[False].delegates)
    errors = sqnr_by_value(made[True].evidence.program, made[True].evidence.quantized, batches[0])
    rotated = [n for n in made[True].evidence.quantized.graph.nodes if "ingot_inverse_transform" in n.meta]
    assert len(rotated) > 8
    assert min(errors[n.meta["ingot_inverse_transform"][0]] for n in rotated) > 8


class Block(nn.Module):
    """A usual decoder block, with `between` applied to what it adds to the residual stream."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor] | nn.Module, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm, self.between = nn.Embedding(40, 64), norm, between
        self.up, self.down, self.head = nn.Linear(64, 96), nn.Linear(96, 64), nn.Linear(64, 40)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x + self.between(self.down(torch.relu(self.up(self.norm(x)))))
        return self.head(self.norm(x))


class Norm(nn.Module):
    def __init__(self, less: float = 0.0) -> None:
        super().__init__()
        self.gain, self.less = nn.Parameter(torch.rand(64) + 0.5), less

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) - self.less)


TOKENS = (torch.randint(0, 40, (1, 5), generator=torch.Generator().manual_seed(0)),)


def stream_in(model: nn.Module, inputs: tuple[torch.Tensor, ...] = TOKENS) -> Any:
    module = rewrite_for(api.capture(model.eval(), inputs), find_target("xnnpack"), recipe_from(None)).program.module
    return find_residual_stream(module, find_weight_layers(module, 4, 32, 4, 4))


def test_ops_that_commute_with_a_rotation_are_found_by_computing() -> None:
    found = stream_in(Block(lambda y: 0.5 * y, Norm()))
    assert found is not None
    assert len(found.writers) == 1
    assert len(found.readers) == 2


@pytest.mark.parametrize(
    ("between", "norm"),
    [(torch.relu, Norm()), (Norm(), Norm()), (nn.Identity(), Norm(0.1)), (nn.Identity(), nn.LayerNorm(64))],
    ids=["relu", "norm after a linear", "norm with an offset", "layer norm"],
)
def test_an_op_that_is_not_rotation_invariant_prevents_rotation(between: Any, norm: nn.Module) -> None:
    model = Block(between, norm)
    assert stream_in(model) is None
    casting = ingot.cast(model, TOKENS, target="xnnpack", weights="8da8w", calibration=[TOKENS])
    assert casting.check.outputs[0].sqnr_db > 25
    assert any("not rotated: " in n and "test_rotation.py:" in n for n in casting.notes)


class Both(Block):
    """A linear that both reads and writes the residual stream."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return self.head(self.norm(x + self.square(self.norm(x))))


class Clipped(Block):
    """Outlier channels are clipped, the others are not."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(tokens).clamp(-8, 8)))


class Mixed(Block):
    """A linear over tokens, as MLP-Mixer has it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.norm(self.table(tokens)).transpose(1, 2)).transpose(1, 2))


class Gated(Block):
    """A product with one number per token."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        h = self.norm(x)
        return self.head(self.norm(x + self.down(self.one(h) * self.up(h))))


class Shared(Block):
    """A linear shared by two norms: rotated, it has two weights."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(self.other(x + self.down(torch.relu(self.up(self.other(x))))))


def unusual(block: type[Block]) -> Block:
    torch.manual_seed(0)  # norms have random gains
    model = block(nn.Identity(), Norm()).eval()
    model.square, model.mix, model.one, model.other = nn.Linear(64, 64), nn.Linear(5, 5), nn.Linear(64, 1), Norm()
    with torch.no_grad():
        model.table.weight[:, 3] *= 30
    return model


@pytest.mark.parametrize("block", [Both, Clipped, Gated, Shared])
@pytest.mark.parametrize("scheme", ["8da8w", "8da4w"])
def test_unusual_blocks_are_correct(block: type[Block], scheme: str) -> None:
    """In the artefact; the SQNR to float is at most 3 dB below that without rotation."""
    batches = [(torch.randint(0, 40, (1, 5), generator=torch.Generator().manual_seed(i)),) for i in range(60)]
    made = [
        ingot.cast(unusual(block), batches[0], target="xnnpack", weights=w, calibration=batches, validation=batches[:8])
        .check.outputs[0]
        .sqnr_db
        for w in (scheme, f"{scheme},rotate=no")
    ]
    assert made[0] > made[1] - 3
    assert made[0] > (25 if scheme == "8da8w" else 10)


def test_a_shared_weight_with_two_rotations_is_counted_twice() -> None:
    casting = ingot.cast(unusual(Shared), TOKENS, target="xnnpack", weights="8da8w", calibration=[TOKENS])
    ups = [layer for layer in casting.layers if layer.rows == 96]
    downs = [layer for layer in casting.layers if layer.width == 96]
    assert [layer.bytes > 0 for layer in ups] == [True, True]
    assert [layer.bytes > 0 for layer in downs] == [True, False]


def test_the_search_is_linear_in_the_length_of_the_model() -> None:
    class Long(Block):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.table(tokens))
            for _ in range(40):
                x = x + torch.relu(x * 0.5)
            return self.head(x)

    assert stream_in(unusual(Long)) is None  # doubling at each block, it would not end


def test_a_bias_that_is_an_input_prevents_rotation() -> None:
    class Given(Block):
        square: Any

        def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            x = self.table(tokens)
            return self.head(self.norm(x + nn.functional.linear(self.norm(x), self.square.weight, bias)))

    assert stream_in(unusual(Given), (*TOKENS, torch.randn(64))) is None


def test_a_linear_over_tokens_prevents_rotation() -> None:
    assert stream_in(unusual(Mixed)) is None


def test_a_head_with_more_bits_than_its_embedding_is_not_tied_to_it() -> None:
    decoder = Decoder(outlier_decoder(), 32).eval()
    module = captured(decoder, 1)
    for most, tied in ((None, 1), (10**6, 0)):
        asked = Weights("8da4w", embedding_bits=4, head_bits=4, most_bytes=most)
        chosen = quantize_weights(module, asked, [])
        assert chosen.rotation is not None
        assert len(chosen.rotation.tied) == tied


def test_smoothquant_is_exact_in_float() -> None:
    """Without rounding: one linear divides by the scales, another multiplies by them."""
    torch.manual_seed(0)
    decoder = Decoder(outlier_decoder(), 32).eval()
    module = captured(decoder, 1)
    layers = find_weight_layers(module, 8, 32, 8, 8)
    downs = [layer.name for layer in layers if layer.width == 160]
    statistics = {n: InputStatistics((torch.eye(160),), torch.rand(160) * 50 + 0.1, 1000) for n in downs}
    rotation = find_rotation(module, layers, ())
    assert rotation is not None
    smoothing = find_smoothing(module, layers, statistics, rotation.transforms, ())
    assert [s.producer is not None for s in smoothing] == [True, True]
    transforms = add_smoothing(rotation.transforms, smoothing)
    made = in_float(module, rotation, layers, transforms)
    batch = decoder.inputs_for([7], decoder.empty_cache(32), 0)
    with torch.no_grad():
        for wanted, got in zip(module(*batch), made(*batch), strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


class Returned(Block):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return torch.cat([self.head(self.norm(x)), x], -1)


def test_a_stream_that_is_returned_is_not_rotated() -> None:
    assert stream_in(Returned(nn.Identity(), Norm())) is None


def test_prequantized_weights_are_not_rotated() -> None:
    """Rotation would move them off their grid."""
    model = Block(nn.Identity(), Norm()).eval()
    with torch.no_grad():
        steps = torch.randint(-7, 8, (96, 64), generator=torch.Generator().manual_seed(0)).float()
        model.up.weight.copy_(steps / 64)
    module = rewrite_for(api.capture(model, TOKENS), find_target("xnnpack"), recipe_from(None)).program.module
    chosen = quantize_weights(module, Weights("8da4w", embedding_bits=8, head_bits=8), [TOKENS])
    assert chosen.rotation is None
    assert chosen.notes == ("residual stream not rotated: some of its weights are prequantized",)
    up = next(layer.name for layer in chosen.layers if layer.rows == 96)
    torch.testing.assert_close(chosen.rounded[up].dequantized, steps / 64)


def test_rotation_can_be_disabled() -> None:
    model = Block(nn.Identity(), Norm())
    how: dict[str, Any] = {"target": "xnnpack", "calibration": [TOKENS]}
    plain, asked, usual = (
        ingot.cast(model, TOKENS, weights=w, **how).pte for w in ("8da8w,rotate=no", "8da8w,rotate=yes", "8da8w")
    )
    assert plain != usual
    assert asked == usual
    with pytest.raises(ingot.IngotError, match="rotate must be yes or no"):
        ingot.cast(model, TOKENS, weights="8da8w,rotate=perhaps", **how)
