"""Recording: statistics against numpy, histograms against the data, and the notes on insufficient data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ingot.calibrate.histogram import MAX_SAMPLE, flatten_dense, observe
from ingot.calibrate.recorder import record_module
from ingot.calibrate.statistics import Ranges, Stats, quantile
from ingot.errors import InputError


def unlifted(net: nn.Module, *inputs: Tensor) -> torch.fx.GraphModule:
    return torch.export.export(net.eval(), inputs).module(check_guards=False)


def stats_of(*tensors: Tensor) -> Stats:
    net = unlifted(nn.Identity(), tensors[0])
    (name,) = {n.name for n in net.graph.nodes if n.op == "placeholder"}
    return record_module(net, [(t,) for t in tensors]).values[name]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.norm(self.conv(x)).relu().permute(0, 2, 3, 1).chunk(2, -1)
        return (a * b).flatten(1).sort(-1)[0]


X = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
BATCHES = [(X * k,) for k in (1, 3, 2)]


@pytest.fixture(scope="module")
def net() -> torch.fx.GraphModule:
    torch.manual_seed(0)
    return unlifted(Net(), X)


@pytest.fixture(scope="module")
def ranges(net: torch.fx.GraphModule) -> Ranges:
    return record_module(net, BATCHES, fingerprint="f")


def test_every_floating_value_is_recorded_exactly(net: torch.fx.GraphModule, ranges: Ranges) -> None:
    seen: dict[str, list[Tensor]] = {}

    class Spy(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            value = super().run_node(n)
            if n.op in ("placeholder", "call_function") and isinstance(value, Tensor) and value.is_floating_point():
                seen.setdefault(n.name, []).append(value.detach().clone().reshape(-1))
            return value

    for batch in BATCHES:
        Spy(net).run(*batch)
    assert set(ranges.values) == set(seen)
    for name, parts in seen.items():
        whole, got = torch.cat(parts), ranges.values[name]
        assert (got.min, got.max) == (whole.min().item(), whole.max().item()), name
        assert (got.count, got.nonfinite) == (whole.numel(), 0)
        assert sum(got.histogram.values()) == whole.numel()
    assert (ranges.batches, ranges.samples) == (3, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bins_hold_what_falls_between_their_edges(dtype: torch.dtype) -> None:
    x = (torch.randn(MAX_SAMPLE) * 10 ** torch.linspace(-6, 4, MAX_SAMPLE)).to(dtype)
    stats = stats_of(x)
    low, high = stats.edges()
    assert (low[1:] >= high[:-1]).all()
    x = x.double()
    for a, b, n in zip(low, high, stats.counts(), strict=True):
        inside = ((x >= a) & (x < b)).sum() if a >= 0 else ((x > a) & (x <= b)).sum()
        assert abs(int(inside) - int(n)) <= 1 + int((x == a).sum() + (x == b).sum())
    assert ((high - low) <= torch.maximum(low.abs(), high.abs()) / 16 + 1e-37).all()


def test_zero_is_zero_whatever_its_sign() -> None:
    stats = stats_of(torch.tensor([0.0, -0.0, 1.0, -1.0]))
    assert stats.centers().tolist() == [-1, 0, 0, 1]
    assert stats.counts().tolist() == [1, 1, 1, 1]


def test_quantiles_come_within_a_bin() -> None:
    x = torch.randn(MAX_SAMPLE)
    stats = stats_of(x)
    for q in (0.0, 0.001, 0.1, 0.5, 0.9, 0.999, 1.0):
        true = float(np.quantile(x.numpy(), q))
        assert quantile(stats, q) == pytest.approx(true, rel=0.08, abs=0.01)
    assert (quantile(stats, 0), quantile(stats, 1)) == (stats.min, stats.max)


def test_the_error_of_quantizing_follows_from_the_histogram() -> None:
    x = torch.randn(MAX_SAMPLE)
    values, weights = stats_of(x).points()
    assert weights.sum() == pytest.approx(MAX_SAMPLE)
    for scale in (0.01, 0.02, 0.03):

        def error(v: Tensor, s: float = scale) -> Tensor:
            return ((v / s).round().clamp(-128, 127) * s - v) ** 2

        estimate = float((error(values) * weights).sum() / weights.sum())
        assert estimate == pytest.approx(float(error(x.double()).mean()), rel=0.1)


def test_a_sample_of_a_big_tensor_sees_every_channel_and_moves_on() -> None:
    channels = torch.arange(64.0).repeat_interleave(56 * 56).reshape(1, 64, 56, 56)
    for t in (channels, channels.to(memory_format=torch.channels_last), channels.transpose(1, 3)):
        one = np.bincount(observe(flatten_dense(t)).bins)
        assert one.sum() <= MAX_SAMPLE
        whole = np.bincount((channels.numpy().reshape(-1).view(np.uint32) >> 19).astype(np.intp))
        np.testing.assert_allclose(one / one.sum(), whole / whole.sum(), atol=0.01)
    noise = torch.randn(1, 64, 56, 56)
    assert not np.array_equal(observe(flatten_dense(noise), 0).bins, observe(flatten_dense(noise), 1).bins)


class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        wide = x[:, :1].expand(2, 3, 4)
        return x.view(-1), x.permute(2, 0, 1), x[:, :2], wide, x.t().clone() if x.dim() == 2 else x * 1


def test_views_share_numbers_only_where_they_hold_the_same() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    values = record_module(unlifted(Views(), x), [(x,)]).values
    (part,) = (s for n, s in values.items() if s.count == 16 and n.startswith("slice"))
    assert (part.min, part.max) == (0, 19)
    (wide,) = (s for n, s in values.items() if n.startswith("expand"))
    assert (wide.count, wide.max, sum(wide.histogram.values())) == (24, 15, 24)


def test_a_value_changed_in_place_is_observed_again() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.ops.aten.mul.Tensor, (x, 1.0))
    graph.call_function(torch.ops.aten.add_.Tensor, (a, 10.0))
    graph.output((graph.call_function(torch.ops.aten.view.default, (a, [-1])),))
    values = record_module(torch.fx.GraphModule({}, graph), [(torch.zeros(2, 2) + 1,)]).values
    assert [values[n].max for n in ("x", "mul_tensor", "add__tensor", "view_default")] == [1, 1, 11, 11]


def test_the_same_address_alone_does_not_make_the_same_numbers() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    start = graph.call_function(torch.ops.aten.slice.Tensor, (x, 0, 0, 2))  # begins where x begins
    wide = graph.call_function(torch.ops.aten.expand.default, (start, [12, 2]))
    dense = graph.call_function(
        torch.ops.aten.as_strided.default, (wide, [24], [1], 0)
    )  # as many elements as wide, all of x
    graph.output((dense,))
    values = record_module(torch.fx.GraphModule({}, graph), [(torch.arange(24.0),)]).values
    assert [values[n].max for n in ("x", "slice_tensor", "expand_default", "as_strided_default")] == [23, 1, 1, 23]


def test_save_and_load_are_exact(ranges: Ranges, tmp_path: Path) -> None:
    assert Ranges.load(ranges.save(tmp_path / "deep" / "r.json")) == ranges


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "ingot.ranges", "version": 99}', "\xff\x00", "[" * 100_000]
)
def test_a_file_of_another_format_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"r\.json is not a ranges file"):
        Ranges.load(path)


def row(**changed: object) -> dict[str, object]:
    """A good row of one value, of which something was changed."""
    good = {"low": -1.0, "high": 1.0, "count": 4, "nonfinite": 1, "neginf": 0, "keys": [-5, 7], "counts": [1, 2]}
    return {"values": {"x": list({**good, **changed}.values())}}


def test_a_good_row_is_read(ranges: Ranges, tmp_path: Path) -> None:
    """The rows below are refused for what was changed in them."""
    path = ranges.save(tmp_path / "r.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **row()}))
    assert Ranges.load(path).values["x"].finite == 3


@pytest.mark.parametrize(
    "damage",
    [
        {"values": None}, {"values": {"x": [1]}}, {"notes": 3}, {"values": [1]}, row(low=math.nan), row(high=math.inf),
        row(low=2.0), row(count=-1), row(count=1.5), row(count=10**400), row(neginf=2), row(nonfinite=9),
        row(keys=[0, 1 << 40]), row(keys=["a", "b"]), row(counts=[1, 0]), row(counts=[]), row(keys=[], counts=[]),
        {"batches": "3"}, {"fingerprint": None}, {"steady": []}, {"sensitivity": {"x": math.nan}},
        {"sensitivity": {"x": [1.0, "y"]}}, {"sensitivity": {"x": -1.0}},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(ranges: Ranges, tmp_path: Path, damage: dict[str, object]) -> None:
    path = ranges.save(tmp_path / "r.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(InputError, match="is not a ranges file"):
        Ranges.load(path)
    with pytest.raises(InputError):
        Ranges.load(tmp_path / "missing.json")


def test_merging_is_recording_all_at_once(net: torch.fx.GraphModule, ranges: Ranges) -> None:
    one, two = (record_module(net, part, fingerprint="f") for part in (BATCHES[:1], BATCHES[1:]))
    # The sensitivity is estimated on the first batches of each recording.
    assert replace(one.merge(two), sensitivity={}) == replace(ranges, sensitivity={})
    with pytest.raises(InputError, match="different programs"):
        one.merge(replace(two, fingerprint="g"))


def test_known_values_keep_their_record(net: torch.fx.GraphModule, ranges: Ranges) -> None:
    kept = {n: replace(s, max=99.0) for n, s in list(ranges.values.items())[:3]}
    again = record_module(net, BATCHES, known=replace(ranges, values=kept))
    assert set(again.values) == set(ranges.values)
    assert {n: again.values[n] for n in kept} == kept


def test_batches_are_read_once_reset_comes_first_and_progress_is_reported(net: torch.fx.GraphModule) -> None:
    calls: list[str] = []

    def stream() -> Iterator[tuple[Tensor, ...]]:
        for i, batch in enumerate(BATCHES):
            calls.append(f"read {i}")
            yield batch

    record_module(net, stream(), reset=lambda: calls.append("reset"), on_batch=lambda i: calls.append(f"done {i}"))
    assert calls == [c for i in range(3) for c in (f"read {i}", "reset", f"done {i}")]


def test_no_batches_and_batches_that_do_not_fit(net: torch.fx.GraphModule) -> None:
    with pytest.raises(InputError, match="no calibration batches") as e:
        record_module(net, [])
    assert e.value.hint
    for batch, why in (((X, X), "2 inputs"), (X, "a Tensor"), ((torch.randn(2, 5, 12, 12),), "")):
        with pytest.raises(InputError, match=r"batch 1 (is invalid|failed)") as e:
            record_module(net, [(X,), batch])  # type: ignore[list-item]
        assert why in str(e.value.why)
    assert isinstance(e.value.__cause__, RuntimeError)
    assert e.value.where


def test_notes_report_insufficient_data() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return x.log(), (x * 0 - 1).log(), y * 0 + 3

    x, y = torch.tensor([-1.0, 1.0, 2.0]), torch.ones(3)
    ranges = record_module(unlifted(Odd(), x, y), [(x, y), (x + 0.5, y)])
    text = "\n".join(ranges.notes)
    assert "identical in all 2 batches, calibration saw no variation: y" in text
    assert "never finite, no range: log_1" in text
    assert "excluded from the range: log" in text
    assert "add (3)" in text
    assert (ranges.values["log"].nonfinite, ranges.values["log_1"].finite) == (2, 0)
    assert "only one batch" in record_module(unlifted(Odd(), x, y), [(x, y)]).notes[0]


def test_merged_inputs_are_constant_only_if_they_are_equal() -> None:
    net = unlifted(nn.Identity(), X)
    a, b = (record_module(net, [(X * k,)]) for k in (1, 2))
    assert not any("identical in all" in n for n in a.merge(b).notes)
    assert any("identical in all 2" in n for n in a.merge(a).notes)


def test_empty_integer_and_scalar_values_do_no_harm() -> None:
    class Few(nn.Module):
        def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            return x[:0] * 2, i + 1, x.sum()

    ranges = record_module(unlifted(Few(), torch.ones(3), torch.arange(3)), [(torch.ones(3), torch.arange(3))])
    assert ranges.values["sum_1"].max == 3
    assert ranges.values["mul"].count == 0
    assert "add" not in ranges.values
