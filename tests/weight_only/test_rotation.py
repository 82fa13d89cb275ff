"""A decoder's stream turned by an orthogonal matrix: found by computing, exact in float, less noise when rounded."""

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
from ingot.core.fx import add_constant, copied
from ingot.llm import pipeline as road
from ingot.llm.decoder import Decoder
from ingot.rewrite.apply import rewrite_for
from ingot.targets.registry import find_target
from ingot.verify.localize.graph_errors import error_along
from ingot.weight_only.cast import cast_weights
from ingot.weight_only.hessian import Read
from ingot.weight_only.insert_qdq import put_biases
from ingot.weight_only.options import Weights
from ingot.weight_only.pipeline import chosen_weights
from ingot.weight_only.residual_stream import stream_of, turn
from ingot.weight_only.rotation import turned
from ingot.weight_only.scheme import layers_of, weight_of
from ingot.weight_only.smoothing import evened, with_even
from ingot.weight_only.weight_transforms import NONE
from tests.support.decoders import KINDS, with_outlier_channel


def captured(decoder: Decoder, many: int, target: str = "xnnpack") -> GraphModule:
    program = api.capture(decoder, decoder.example(many))
    return rewrite_for(program, find_target(target), recipe_from(None)).program.module


@pytest.mark.parametrize("target", ["xnnpack", "vulkan"])
@pytest.mark.parametrize("kind", KINDS)
def test_turned_it_is_the_same_model(kind: str, target: str) -> None:
    """Without any rounding, both methods give what they gave; a head that is tied, and one that is not."""
    decoder = Decoder(with_outlier_channel(kind), 32).eval()
    for many, head_bits in ((1, 8), (1, 4), (8, 4)):
        module = captured(decoder, many, target)
        layers = layers_of(module, 4, 32, 4, head_bits)
        found = turned(module, layers, (), find_target(target).weight_only.fused_norm_gains)
        assert found is not None
        assert len(found.stream.writers) == 4
        assert len(found.stream.readers) == 11
        assert bool(found.tied) == (head_bits == 4)
        batch = decoder.given(list(range(5, 5 + many)), decoder.empty(32), 0)
        with torch.no_grad():
            for wanted, made in zip(module(*batch), in_float(module, found, layers)(*batch), strict=True):
                torch.testing.assert_close(made, wanted, rtol=2e-4, atol=2e-4)


def in_float(module: GraphModule, found: Any, layers: Any, changes: Any = None) -> GraphModule:
    """The program with changed weights that are not rounded."""
    made, changes = copied(module), changes or found.changes
    found.put(made, layers)
    put_biases(made, changes)
    for node in [n for n in made.graph.nodes if n.name in changes]:
        weight = changes.get(node.name, NONE).weight(weight_of(node))
        node.update_arg(0 if "embedding" in str(node.target) else 1, add_constant(made, weight, "turned", node))
    made.recompile()
    return made


def test_the_matrix_is_orthogonal_and_always_the_same() -> None:
    torch.testing.assert_close(turn(96) @ turn(96).T, torch.eye(96), rtol=0, atol=1e-5)
    assert torch.equal(turn(96), turn(96))


def test_a_loud_channel_does_less_harm() -> None:
    """By the artefact; what is turned can still be compared with the float program, value by value."""
    decoder = Decoder(with_outlier_channel(), 32).eval()
    texts = torch.randint(0, 256, (12, 24), generator=torch.Generator().manual_seed(2)).tolist()
    program = api.capture(decoder, decoder.example(1))
    batches = [step for tokens in texts for step in road.steps_of(decoder, tokens)]
    made = {
        rotate: cast_weights(program, "xnnpack", {"scheme": "8da8w", "rotate": rotate}, batches)
        for rotate in (True, False)
    }
    logits = {rotate: c.check.outputs[0].sqnr_db for rotate, c in made.items()}
    assert logits[True] > logits[False] + 3
    assert len(made[True].delegates) == len(made[False].delegates)
    errors = error_along(made[True].evidence.program, made[True].evidence.quantized, batches[0])
    turned_back = [n for n in made[True].evidence.quantized.graph.nodes if "ingot_was" in n.meta]
    assert len(turned_back) > 8
    assert min(errors[n.meta["ingot_was"][0]] for n in turned_back) > 8


class Block(nn.Module):
    """Of the usual kind, but for what is done with the stream on the way."""

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


def stream_in(model: nn.Module, given: tuple[torch.Tensor, ...] = TOKENS) -> Any:
    module = rewrite_for(api.capture(model.eval(), given), find_target("xnnpack"), recipe_from(None)).program.module
    return stream_of(module, layers_of(module, 4, 32, 4, 4))


def test_what_lets_it_through_is_found_by_computing() -> None:
    found = stream_in(Block(lambda y: 0.5 * y, Norm()))
    assert found is not None
    assert len(found.writers) == 1
    assert len(found.readers) == 2


@pytest.mark.parametrize(
    ("between", "norm"),
    [(torch.relu, Norm()), (Norm(), Norm()), (nn.Identity(), Norm(0.1)), (nn.Identity(), nn.LayerNorm(64))],
    ids=["a relu on it", "a norm behind a linear", "a norm with an offset", "a layer norm"],
)
def test_who_looks_at_single_channels_keeps_it_as_it_is(between: Any, norm: nn.Module) -> None:
    model = Block(between, norm)
    assert stream_in(model) is None
    casting = ingot.cast(model, TOKENS, target="xnnpack", weights="8da8w", calibration=[TOKENS])
    assert casting.check.outputs[0].sqnr_db > 25
    assert any("not rotated: " in n and "test_rotation.py:" in n for n in casting.notes)


class Both(Block):
    """A linear that reads the stream and writes to it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return self.head(self.norm(x + self.square(self.norm(x))))


class Clipped(Block):
    """Loud channels are cut, quiet ones are not."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(tokens).clamp(-8, 8)))


class Mixed(Block):
    """A linear over tokens, as MLP-Mixer has it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.norm(self.table(tokens)).transpose(1, 2)).transpose(1, 2))


class Gated(Block):
    """A product with one number a token."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        h = self.norm(x)
        return self.head(self.norm(x + self.down(self.one(h) * self.up(h))))


class Shared(Block):
    """One linear behind two norms: turned, it is two."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(self.other(x + self.down(torch.relu(self.up(self.other(x))))))


def odd(kind: type[Block]) -> Block:
    torch.manual_seed(0)  # its norms have gains of their own
    model = kind(nn.Identity(), Norm()).eval()
    model.square, model.mix, model.one, model.other = nn.Linear(64, 64), nn.Linear(5, 5), nn.Linear(64, 1), Norm()
    with torch.no_grad():
        model.table.weight[:, 3] *= 30
    return model


@pytest.mark.parametrize("kind", [Both, Clipped, Gated, Shared])
@pytest.mark.parametrize("scheme", ["8da8w", "8da4w"])
def test_odd_models_are_right_all_the_same(kind: type[Block], scheme: str) -> None:
    """By the artefact; as near to float as without turning, or nearer."""
    batches = [(torch.randint(0, 40, (1, 5), generator=torch.Generator().manual_seed(i)),) for i in range(60)]
    made = [
        ingot.cast(odd(kind), batches[0], target="xnnpack", weights=w, calibration=batches).check.outputs[0].sqnr_db
        for w in (scheme, f"{scheme},rotate=no")
    ]
    assert made[0] > made[1] - 3
    assert made[0] > (25 if scheme == "8da8w" else 10)


def test_a_weight_that_is_turned_in_two_ways_is_counted_twice() -> None:
    casting = ingot.cast(odd(Shared), TOKENS, target="xnnpack", weights="8da8w", calibration=[TOKENS])
    ups = [layer for layer in casting.layers if layer.rows == 96]
    downs = [layer for layer in casting.layers if layer.width == 96]
    assert [layer.bytes > 0 for layer in ups] == [True, True]
    assert [layer.bytes > 0 for layer in downs] == [True, False]


def test_a_long_net_without_an_end_is_given_up_in_time() -> None:
    class Long(Block):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.table(tokens))
            for _ in range(40):
                x = x + torch.relu(x * 0.5)
            return self.head(x)

    assert stream_in(odd(Long)) is None  # by doubling at each block it would take years


def test_a_bias_that_is_an_input_keeps_the_stream_as_it_is() -> None:
    class Given(Block):
        square: Any

        def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            x = self.table(tokens)
            return self.head(self.norm(x + nn.functional.linear(self.norm(x), self.square.weight, bias)))

    assert stream_in(odd(Given), (*TOKENS, torch.randn(64))) is None


def test_a_linear_over_tokens_keeps_the_stream_as_it_is() -> None:
    assert stream_in(odd(Mixed)) is None


def test_a_head_that_gets_more_bits_than_its_table_is_not_tied_to_it() -> None:
    decoder = Decoder(with_outlier_channel(), 32).eval()
    module = captured(decoder, 1)
    for most, tied in ((None, 1), (10**6, 0)):
        asked = Weights("8da4w", embedding_bits=4, head_bits=4, most_bytes=most)
        chosen = chosen_weights(module, asked, [])
        assert chosen.turned is not None
        assert len(chosen.turned.tied) == tied


def test_channels_evened_out_by_a_factor_are_the_same_model() -> None:
    """Without rounding: what one linear divides by, another multiplies with."""
    torch.manual_seed(0)
    decoder = Decoder(with_outlier_channel(), 32).eval()
    module = captured(decoder, 1)
    layers = layers_of(module, 8, 32, 8, 8)
    downs = [layer.name for layer in layers if layer.width == 160]
    read = {n: Read((torch.eye(160),), torch.rand(160) * 50 + 0.1, 1000) for n in downs}
    found = turned(module, layers, ())
    assert found is not None
    even = evened(module, layers, read, found.changes, ())
    assert [e.source is not None for e in even] == [True, True]
    changes = with_even(found.changes, even)
    made = in_float(module, found, layers, changes)
    batch = decoder.given([7], decoder.empty(32), 0)
    with torch.no_grad():
        for wanted, got in zip(module(*batch), made(*batch), strict=True):
            torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


class Returned(Block):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return torch.cat([self.head(self.norm(x)), x], -1)


def test_a_stream_that_is_returned_is_left_alone() -> None:
    assert stream_in(Returned(nn.Identity(), Norm())) is None


def test_weights_that_came_rounded_are_not_turned() -> None:
    """Turning would take them off their grid."""
    model = Block(nn.Identity(), Norm()).eval()
    with torch.no_grad():
        steps = torch.randint(-7, 8, (96, 64), generator=torch.Generator().manual_seed(0)).float()
        model.up.weight.copy_(steps / 64)
    module = rewrite_for(api.capture(model, TOKENS), find_target("xnnpack"), recipe_from(None)).program.module
    chosen = chosen_weights(module, Weights("8da4w", embedding_bits=8, head_bits=8), [TOKENS])
    assert chosen.turned is None
    assert chosen.notes == ("not rotated: some of its weights came rounded",)
    up = next(layer.name for layer in chosen.layers if layer.rows == 96)
    torch.testing.assert_close(chosen.rounded[up].real, steps / 64)


def test_it_can_be_done_without() -> None:
    model = Block(nn.Identity(), Norm())
    how: dict[str, Any] = {"target": "xnnpack", "calibration": [TOKENS]}
    plain, asked, usual = (
        ingot.cast(model, TOKENS, weights=w, **how).pte for w in ("8da8w,rotate=no", "8da8w,rotate=yes", "8da8w")
    )
    assert plain != usual
    assert asked == usual
    with pytest.raises(ingot.IngotError, match="rotate is yes or no"):
        ingot.cast(model, TOKENS, weights="8da8w,rotate=perhaps", **how)
