"""Weight-only quantization: rounding methods, the pipeline on XNNPACK, mixed bits, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ingot
from ingot.weight_only.gptq import round_gptq
from ingot.weight_only.hessian import HessianRecorder
from ingot.weight_only.hqq import round_hqq
from ingot.weight_only.options import Weights
from ingot.weight_only.prequantized import recover_codes
from ingot.weight_only.residual_stream import rotation_matrix
from ingot.weight_only.round_to_nearest import round_minmax, round_to_nearest
from ingot.weight_only.rounded_weight import RoundedWeight, code_range
from ingot.weight_only.scheme import group_size_for

# ---- rounding ----


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.sampled_from([4, 8]), st.integers(0, 10_000))
def test_the_error_is_at_most_half_a_step_unless_clipped(rows: int, groups: int, bits: int, seed: int) -> None:
    weight = torch.randn(rows, 32 * groups, generator=torch.Generator().manual_seed(seed))
    made = round_to_nearest(weight, bits, 32)
    low, high = code_range(bits)
    assert made.codes.min() >= low
    assert made.codes.max() <= high
    values = made.dequantized.view(rows, groups, 32) / made.scales[..., None]
    step = made.scales.repeat_interleave(32, 1)
    clipped = ((values <= low) | (values >= high)).view(rows, -1)
    assert ((made.dequantized - weight).abs() <= step * 0.51)[~clipped].all()


def test_gptq_beats_round_to_nearest_on_correlated_inputs() -> None:
    torch.manual_seed(0)
    weight, mix = torch.randn(64, 128), torch.randn(128, 128) / 8
    x = torch.randn(4096, 128) @ mix
    hessian = x.T @ x / len(x)
    wanted = x @ weight.T
    gptq, nearest = (
        float((x @ rounded(weight, 4, 32, hessian).dequantized.T - wanted).square().mean())
        for rounded in (round_gptq, round_to_nearest)
    )
    assert gptq < 0.6 * nearest


def test_gptq_with_dead_inputs() -> None:
    """The Hessian of inputs that are always zero is singular; damping keeps the result finite and accurate."""
    torch.manual_seed(0)
    weight, x = torch.randn(16, 64), torch.randn(512, 64)
    x[:, :8] = 0
    made = round_gptq(weight, 4, 32, x.T @ x / len(x))
    assert torch.isfinite(made.dequantized).all()
    error = (x @ (made.dequantized - weight).T).square().mean() / (x @ weight.T).square().mean()
    assert error < 0.02


@pytest.mark.parametrize(
    ("width", "bits", "wanted", "group"),
    [(576, 4, 32, 32), (576, 4, 128, 96), (1536, 4, 128, 128), (200, 4, 32, 200), (48, 4, 32, 48), (576, 8, 32, 576)],
)
def test_a_group_size_divides_the_width(width: int, bits: int, wanted: int, group: int) -> None:
    assert group_size_for(width, bits, wanted) == group


# ---- the pipeline ----


class Net(nn.Module):
    """An embedding, linears with and without bias, a width that no group divides, linears that are used twice."""

    def __init__(self, vocabulary: int = 300, width: int = 64, inner: int = 200) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocabulary, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        for _ in range(2):
            x = x + self.down(torch.nn.functional.silu(self.up(x)))
        return self.head(x)


def texts(n: int = 6) -> list[tuple[torch.Tensor]]:
    return [(torch.randint(0, 300, (1, 12), generator=torch.Generator().manual_seed(i)),) for i in range(n)]


def cast(weights: Any, net: nn.Module | None = None, **how: Any) -> ingot.Casting:
    torch.manual_seed(0)
    made = (net or Net()).eval()
    return ingot.cast(made, texts()[0], target="xnnpack", weights=weights, calibration=texts(), **how)


@pytest.mark.parametrize(("scheme", "least"), [("8da8w", 30), ("8da4w", 17)])
def test_one_delegate_after_the_embedding(scheme: str, least: float) -> None:
    casting = cast(scheme)
    assert len(casting.delegates) == 1
    assert [o.op for o in casting.host_ops] == ["quantized_decomposed.embedding_byte.default"]
    assert casting.check.outputs[0].sqnr_db > least
    assert casting.check.outputs[0].faithful_db > 30
    assert {layer.bits for layer in casting.layers if layer.kind == "linear"} == ({8} if scheme == "8da8w" else {4, 8})


def test_layers_of_a_casting() -> None:
    layers = {layer.name: layer for layer in cast("8da4w").layers}
    assert [layers[n].kind for n in layers].count("embedding") == 1
    assert {layer.group for layer in layers.values() if layer.bits == 4} == {
        32,
        200,
    }  # width 64 per group, width 200 per row
    assert sum(layer.bytes for layer in layers.values()) < 0.3 * sum(
        4 * layer.rows * layer.width for layer in layers.values()
    )


def test_calibration_data_improves_the_result() -> None:
    with_data, without = cast("8da4w"), cast({"scheme": "8da4w", "method": "nearest"})
    assert with_data.check.outputs[0].sqnr_db > without.check.outputs[0].sqnr_db + 1


def test_rounding_methods_without_data() -> None:
    """Scales by min-max, by HQQ, or by the clipping search of round-to-nearest, which has the least square error."""
    torch.manual_seed(0)
    weight = torch.randn(64, 256)
    minmax, hqq, nearest = (
        float((rounded(weight, 4, 32).dequantized - weight).square().mean())
        for rounded in (round_minmax, round_hqq, round_to_nearest)
    )
    assert nearest <= hqq < minmax
    assert cast("8da4w, method=hqq").check.passed
    assert cast({"scheme": "8da4w", "method": "minmax"}).check.passed


def test_gptq_on_data_that_is_not_finite_is_refused() -> None:
    net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).eval()
    batches = [(torch.full((4, 32), torch.nan),)]
    with pytest.raises(ingot.InputError, match=r"not finite.*NaN"):
        ingot.cast(net, (torch.zeros(4, 32),), target="xnnpack", weights="8da4w,method=gptq", calibration=batches)


def test_gptq_without_data_is_refused() -> None:
    with pytest.raises(ingot.PlanError, match="gptq needs calibration data"):
        ingot.cast(Net().eval(), texts()[0], target="xnnpack", weights="8da4w,method=gptq")


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([4, 8]), st.integers(1, 5), st.integers(0, 10_000))
def test_prequantized_weights_are_recovered(bits: int, groups: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    low, high = code_range(bits)
    codes = torch.randint(low, high + 1, (6, 32 * groups), generator=generator)
    scales = (torch.rand(6, groups, generator=generator) + 0.01).to(torch.bfloat16).float()
    weight = (codes.view(6, groups, 32) * scales[..., None]).view(6, -1)
    found = recover_codes(weight, bits, 32)
    assert found is not None
    torch.testing.assert_close(found.dequantized, weight, rtol=2**-8, atol=0)  # scales are stored as bfloat16
    assert recover_codes(torch.randn(6, 32 * groups, generator=generator), bits, 32) is None


class Outlier(nn.Module):
    """One channel a hundred times as large as the others, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        with torch.no_grad():
            self.first.weight[7] *= 100
            self.second.weight[:, 7] /= 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).relu()


def test_smoothquant_on_an_outlier_channel() -> None:
    torch.manual_seed(0)
    batches, net = [(torch.randn(4, 64),) for _ in range(16)], Outlier().eval()
    smoothed, plain = (
        ingot.cast(net, batches[0], target="xnnpack", weights={"scheme": "8da8w", "method": m}, calibration=batches)
        for m in ("auto", "nearest")
    )
    assert len(smoothed.delegates) == 1
    assert smoothed.check.outputs[0].sqnr_db > plain.check.outputs[0].sqnr_db + 6


def test_round_to_nearest_needs_no_data() -> None:
    torch.manual_seed(0)
    casting = ingot.cast(Net().eval(), texts()[0], target="xnnpack", weights={"scheme": "8da8w", "method": "nearest"})
    assert casting.check.passed


def test_four_bits_everywhere() -> None:
    casting = cast({"scheme": "8da4w", "embedding_bits": 4, "head_bits": 4})
    assert "embedding_4bit" in casting.host_ops[0].op
    assert {layer.bits for layer in casting.layers} == {4}
    assert casting.check.outputs[0].faithful_db > 30


def test_a_width_that_no_group_divides_is_quantized_per_row() -> None:
    """The file grows by the bytes that the layers state."""
    sizes = {}
    for inner in (200, 2000):
        casting = cast("8da4w", Net(inner=inner))
        sizes[inner] = (len(casting.pte), sum(layer.bytes for layer in casting.layers))
    grown, stated = (sizes[2000][i] - sizes[200][i] for i in (0, 1))
    bias = 4 * (2000 - 200)
    assert grown == pytest.approx(stated + bias, rel=0.02)  # both linears are used twice and stored once


def test_mixed_bits_within_a_budget() -> None:
    """A larger budget gives more int8 layers and less noise, and is never exceeded."""
    least = sum(layer.bytes for layer in cast("8da4w").layers)
    tried = {more: cast({"scheme": "8da4w", "most_bytes": least + more}) for more in (0, 7_000, 14_000)}
    for more, casting in tried.items():
        assert sum(layer.bytes for layer in casting.layers) <= least + more
    wide = [sum(layer.bits == 8 for layer in c.layers) for c in tried.values()]
    assert wide[0] < wide[1] < wide[2]
    sqnr = [c.check.outputs[0].sqnr_db for c in tried.values()]
    assert sqnr[0] < sqnr[2]


def test_a_budget_that_is_too_small() -> None:
    with pytest.raises(ingot.IngotError, match=r"do not fit in 1,000 bytes.*with the fewest bits they take"):
        cast({"scheme": "8da4w", "most_bytes": 1000})


def test_the_plan_names_scheme_and_groups() -> None:
    casting = cast("8da4w")
    assert "8da4w" in " ".join(casting.plan.notes)
    assert "4 bits, groups of 32" in casting.plan.why("linear")


# ---- refusals ----


@pytest.mark.parametrize(
    ("weights", "target", "message"),
    [
        ("4w", "xnnpack", "reads the integers as float.*8da4w"),
        ("8w", "xnnpack", "reads the integers as float.*8da8w"),
        ("8da4w", "vgf", "does not support 8da4w weights"),
        ("8da3w", "xnnpack", "unknown weight scheme '8da3w'"),
        ({"scheme": "8da4w", "group": 20}, "xnnpack", "invalid group size 20"),
        ({"scheme": "8da4w", "groop": 32}, "xnnpack", "invalid `weights` option"),
        ({"scheme": "8da4w", "head_bits": 3}, "xnnpack", "embedding_bits and head_bits must be 4 or 8"),
        ({"scheme": "8da4w", "most_bytes": -1}, "xnnpack", "must be a positive integer, not -1"),
        (4, "xnnpack", "must be the name of a scheme"),
    ],
)
def test_refused(weights: Any, target: str, message: str) -> None:
    with pytest.raises(ingot.IngotError, match=message):
        ingot.cast(Net().eval(), texts()[0], target=target, weights=weights)


def test_recipe_settings_without_effect_are_refused() -> None:
    with pytest.raises(ingot.IngotError, match="the recipe sets inputs"):
        cast("8da4w", recipe={"inputs": {"tokens": "int8"}})


def test_a_plan_with_a_scheme_is_not_replayed_as_float() -> None:
    casting = cast("8da8w")
    with pytest.raises(ingot.IngotError, match="its weights are 8da8w"):
        ingot.lower(ingot.capture(Net().eval(), texts()[0]), casting.plan)


def test_no_weights_to_quantize() -> None:
    with pytest.raises(ingot.IngotError, match="8da4w: no weights to quantize"):
        ingot.cast(nn.ReLU(), (torch.randn(1, 4),), target="xnnpack", weights="8da4w")


def test_schemes_with_dynamic_activations() -> None:
    assert Weights("8da4w").spec.dynamic
    assert not Weights("4w").spec.dynamic


def test_the_hessian_from_its_upper_half() -> None:
    torch.manual_seed(0)
    recorder, x = HessianRecorder(), torch.randn(64, 600)
    recorder.record("layer", x[:40])
    recorder.record("layer", x[40:])
    statistics = recorder.statistics_of("layer")
    assert statistics is not None
    _assert_shrunk_hessian(statistics.hessian, x)
    s = torch.rand(600) + 0.5
    _assert_shrunk_hessian(statistics.transformed(s, None).hessian, x / s)
    r = rotation_matrix(600)
    _assert_shrunk_hessian(statistics.transformed(s, r).hessian, x / s @ r.T)


def _assert_shrunk_hessian(hessian: torch.Tensor, x: torch.Tensor) -> None:
    """The diagonal is exact; with 64 rows of 600 channels, off-diagonals keep less than a third."""
    mean, off_diagonal = x.T @ x / len(x), ~torch.eye(600, dtype=torch.bool)
    torch.testing.assert_close(hessian.diagonal(), mean.diagonal(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hessian[off_diagonal], mean[off_diagonal] * 256 / 856, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [24, 96, 4000])
def test_gptq_with_few_calibration_rows_is_no_worse_than_round_to_nearest(rows: int) -> None:
    """On inputs that were not recorded. Without shrinkage, 24 rows would make it half as bad again."""
    torch.manual_seed(0)
    mixed = torch.randn(96, 96) * torch.logspace(0, -1, 96)
    weight, x, unseen = torch.randn(64, 96), torch.randn(rows, 96) @ mixed.T, torch.randn(4000, 96) @ mixed.T
    recorder = HessianRecorder()
    recorder.record("layer", x)
    statistics = recorder.statistics_of("layer")
    assert statistics is not None

    def noise(made: RoundedWeight) -> float:
        return float((unseen @ (made.dequantized - weight).T).square().mean())

    gptq, nearest = (noise(rounded(weight, 4, 32, statistics.hessian)) for rounded in (round_gptq, round_to_nearest))
    assert gptq < nearest
    assert rows < 4000 or gptq < 0.5 * nearest


def test_gptq_rounds_rows_independently() -> None:
    torch.manual_seed(0)
    x, first, second = torch.randn(256, 64), torch.randn(24, 64), torch.randn(40, 64)
    hessian = x.T @ x / 256
    together = round_gptq(torch.cat([first, second]), 4, 32, hessian)
    separate = [round_gptq(w, 4, 32, hessian) for w in (first, second)]
    assert torch.equal(together.codes, torch.cat([r.codes for r in separate]))
    assert torch.equal(together.scales, torch.cat([r.scales for r in separate]))


class BesideOneNumber(nn.Module):
    """A linear whose rows are one number: torchao has no qparams for such a token, and a scale is no smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(1, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(self.narrow(x[..., :1]) + x)


@pytest.mark.parametrize("shape", [(32,), (5, 32)], ids=str)
def test_tokens_of_one_number_and_inputs_of_one_dimension(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    casting = ingot.cast(BesideOneNumber().eval(), (torch.randn(shape),), target="xnnpack", weights="8da8w")
    assert casting.check.passed
    assert (len(casting.delegates), casting.host_ops) == (1, ())


def test_batches_without_rows_add_nothing_to_the_statistics() -> None:
    recorder = HessianRecorder()
    for rows in (0, 3):
        recorder.record("linear", torch.ones(rows, 4))
    statistics = recorder.statistics_of("linear")
    assert statistics is not None
    assert statistics.rows == 3
