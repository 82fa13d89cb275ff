"""The parts of the solver, each against a slower way to the same answer."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph

import ingot
from ingot.calibrate.histogram import measure, sparse
from ingot.calibrate.sensitivity import key
from ingot.calibrate.statistics import Stats
from ingot.plan.lut_alignment import corners
from ingot.plan.mask_fills import body
from ingot.plan.mincut import Energy, least
from ingot.plan.model import QParams
from ingot.plan.noise_model import errors
from ingot.plan.pointwise_consumers import function_of
from ingot.plan.qparams import qparams_for, rounded_down, weight_qparams, with_factors
from ingot.plan.range_estimators import METHODS, choose
from ingot.plan.scale_groups import DisjointSets
from ingot.plan.zero_points import moved
from ingot.targets.base import Format

INT8 = Format("int8", -128, 127, symmetric=False)
INT16 = Format("int16", -32767, 32767, symmetric=True)
WEIGHT = Format("int8", -127, 127, symmetric=True)


@st.composite
def energies(draw: st.DrawFn) -> tuple[list, list[list[float]], list[tuple[int, int, list[float]]]]:
    graph = Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(draw(st.integers(1, 7)))]
    price = st.integers(0, 20).map(float)
    own = [[draw(price), draw(price)] for _ in nodes]
    pairs = list(itertools.combinations(range(len(nodes)), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    # Alike is never dearer than unlike: c00 + c11 <= c01 + c10.
    edges = [(a, b, [0.0, draw(price), draw(price), 0.0]) for a, b in chosen]
    return nodes, own, edges


def cost(sides: tuple[int, ...], own: list[list[float]], edges: list[tuple[int, int, list[float]]]) -> float:
    return sum(c[s] for c, s in zip(own, sides, strict=True)) + sum(c[2 * sides[a] + sides[b]] for a, b, c in edges)


def _entry(table: dict[tuple[str, str], float], x: str, y: str) -> float:
    return table[x, y]


@settings(max_examples=300, deadline=None)
@given(energies())
def test_the_cut_is_the_least_of_all_labellings(drawn: Any) -> None:
    nodes, own, edges = drawn
    energy, pair = Energy(), ("int8", "float")
    for node, c in zip(nodes, own, strict=True):
        energy.add(node, dict(zip(pair, c, strict=True)), pair)
    for a, b, c in edges:
        table = {(x, y): c[2 * i + j] for i, x in enumerate(pair) for j, y in enumerate(pair)}
        energy.edge(nodes[a], nodes[b], pair, pair, partial(_entry, table))
    found = least(energy)
    sides = tuple(pair.index(found[n]) for n in nodes)
    best = min(cost(s, own, edges) for s in itertools.product((0, 1), repeat=len(nodes)))
    assert cost(sides, own, edges) == pytest.approx(best)


def test_gains_are_the_squared_jacobian() -> None:
    """Of a linear map y = A x the gain of x is |A|^2 / |y|^2, whatever the probe, on average."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40, bias=False), nn.Linear(40, 200, bias=False))
    x = torch.randn(1, 6)
    program = ingot.capture(net, (x,))
    ranges = ingot.record(program, [(x,)])
    whole = net[1].weight @ net[0].weight
    exact = float(whole.square().sum() / net(x).square().sum())
    assert ranges.sensitivity["linear"] == pytest.approx(
        float(net[1].weight.square().sum() / net(x).square().sum()), rel=0.5
    )
    assert ranges.sensitivity[key("linear", "input_1", 0)] == pytest.approx(exact, rel=0.5)


def test_each_use_of_a_value_has_its_own_gain() -> None:
    net = Two()
    x = torch.randn(4, 8)
    program = ingot.capture(net.eval(), (x,))
    gains = ingot.record(program, [(x,)]).sensitivity
    loud, quiet = (gains[key(n, "tanh", 0)] for n in ("linear", "linear_1"))
    assert loud > 1000 * quiet
    assert gains["tanh"] >= loud / 2


class Two(nn.Module):
    """One value, read by a loud and by a quiet reader."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.loud, self.quiet = nn.Linear(8, 8), nn.Linear(8, 8)
        self.quiet.weight.data *= 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        return self.loud(y) + self.quiet(y)


@pytest.mark.slow
def test_noise_is_predicted() -> None:
    """The prediction of the plan against the quantized graph, on a net with joins and a residual."""
    from tests.support.digits import digits, fitted

    x, y = digits()
    batches = [(x[i : i + 8],) for i in range(0, 128, 8)]
    recipe = {"halving_noise_is_worth": 0.0}
    casting = ingot.cast(fitted(x, y), batches[0], target="xnnpack", calibration=batches, recipe=recipe)
    (note,) = [n for n in casting.notes if "predicted SQNR" in n]
    predicted = float(note.split(": ")[1].split()[0])
    assert predicted == pytest.approx(casting.check.outputs[0].sqnr_db, abs=4)


def test_noise_is_bought_back_with_time() -> None:
    """The more noise is worth, the less of it there is, and the more runs in float."""
    model, batches = Outliers(), [(torch.randn(4, 16),) for _ in range(8)]
    program = ingot.capture(model.eval(), batches[0])
    ranges = ingot.record(program, batches)
    floats = []
    for worth in (0.0, 0.3, 10.0):
        plan = ingot.plan(program, ranges, "xnnpack", recipe={"halving_noise_is_worth": worth})
        floats.append(sum(d.qparams is None and "float" in d.rule for d in plan))
    assert floats[0] <= floats[1] <= floats[2]
    assert floats[0] < floats[2]


class Outliers(nn.Module):
    """One channel a hundred times as strong as the rest, and all that matters is in the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.wide, self.head = nn.Linear(16, 16), nn.Linear(16, 8)
        self.wide.weight.data[0] *= 100
        self.head.weight.data[:, 0] *= 0.001

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.wide(x) + 1.0)


def stats_of(x: torch.Tensor) -> Stats:
    m = measure(x.reshape(-1))
    raw = np.bincount(m.bins, minlength=1 << 13).astype(np.uint32)
    return Stats(m.low, m.high, m.count, m.nonfinite, m.neginf, sparse(raw))


def points_of(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return x.double().numpy(), np.full(len(x), 1 / len(x))


@pytest.mark.parametrize("method", [*METHODS, "auto", "minmax", "percentile:99"])
def test_every_method_gives_a_range_inside_the_measured_one(method: str) -> None:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    storage, _ = choose(points_of(x), (float(x.min()), float(x.max())), INT8, method)
    low, high = storage.span
    slack = storage.scale
    assert float(x.min()) - slack <= low < 0 < high <= float(x.max()) + slack


def test_the_chosen_range_has_the_least_error() -> None:
    """One outlier in a million is clipped if that is cheap, a common one never."""
    x = torch.cat([torch.randn(5000, generator=torch.Generator().manual_seed(0)), torch.tensor([60.0])])
    span = (float(x.min()), float(x.max()))
    auto, _ = choose(points_of(x), span, INT8, "auto")
    tried = [choose(points_of(x), span, INT8, m)[0] for m in (*METHODS, "minmax")]
    assert errors(points_of(x), [auto])[0] <= errors(points_of(x), tried).min() * 1.03
    often = torch.cat([x, torch.full((500,), 60.0)])
    kept, _ = choose(points_of(often), span, INT8, "auto")
    assert kept.span[1] > 55


def test_a_constant_value_is_stored_exactly() -> None:
    storage, _ = choose(points_of(torch.full((9,), 3.0)), (3.0, 3.0), INT8, "auto")
    assert (storage.qmax - storage.zero_point) * storage.scale == pytest.approx(3.0)
    assert qparams_for(0.0, 0.0, INT8).scale > 0


@pytest.mark.parametrize("fill", [-1e9, -3.4e38, -1e4])
def test_fills_are_told_from_the_rest(fill: float) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    x[::3] = fill
    low, high = body(stats_of(x))
    assert -5 < low < 0 < high < 5


def test_outliers_are_no_fills() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    x[5] = -300.0
    assert body(stats_of(x)) is None
    assert body(stats_of(torch.randn(100) * 1e6)) is None


def test_a_path_through_a_class_is_told() -> None:
    classes: DisjointSets[int] = DisjointSets()
    for a, b in ((1, 2), (2, 3), (3, 4), (1, 9)):
        classes.union(a, b, f"{a}-{b}")
    ways, at, path = classes.ways(1), 4, []
    while at != 1:
        at, why = ways[at]
        path.append(why)
    assert path == ["3-4", "2-3", "1-2"]
    assert not classes.same(1, 77)
    assert len(list(classes.groups())) == 1  # asking after a stranger made nobody a member


@pytest.mark.parametrize(
    ("op", "args", "alone"),
    [
        (torch.ops.aten.tanh.default, (), True),
        (torch.ops.aten.gelu.default, (), True),
        (torch.ops.aten.clamp.default, (-1, 1), True),
        (torch.ops.aten.softmax.int, (0,), False),
        (torch.ops.aten.cumsum.default, (0,), False),
        (torch.ops.aten.sort.default, (), False),
        (torch.ops.aten.max_pool2d.default, ([2, 2],), False),
    ],
)
def test_a_function_of_each_number_is_found_by_trying(op: Any, args: Any, alone: bool) -> None:
    graph = Graph()
    assert (function_of(graph.call_function(op, (graph.placeholder("x"), *args))) is not None) == alone


class Saturated(nn.Module):
    """Most of what the first layer gives is far out, where tanh is flat."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(16, 32), act, nn.Linear(32, 4)
        nn.init.normal_(self.first.weight, std=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x).reshape(1, 4, 8, -1)).reshape(-1, 32))


def test_ranges_are_judged_by_what_the_reader_makes_of_them() -> None:
    """Also behind a reshape; with another reader of the same numbers nothing is cut off."""
    batches = [(torch.randn(4, 16, generator=torch.Generator().manual_seed(i)),) for i in range(8)]
    kept = {}
    for name, act in (("tanh", nn.Tanh()), ("both", Both())):
        torch.manual_seed(0)
        program = ingot.capture(Saturated(act), batches[0])
        ranges = ingot.record(program, batches)
        low, high = ranges.values["linear"].min, ranges.values["linear"].max
        span = ingot.plan(program, ranges, "xnnpack", recipe={"range": "mse"}).qparams("linear").span
        kept[name] = (span[1] - span[0]) / (high - low)
    assert kept["tanh"] < 0.6
    assert kept["both"] > 0.9


class Both(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() + x


def test_weight_scales_give_factors_of_few_bits() -> None:
    """To be read back by rounding to as many bits; no scale becomes smaller, or the largest weight would be cut off."""
    weight = weight_qparams(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), WEIGHT, 0)
    x, out = qparams_for(-1.3, 2.1, INT16), qparams_for(-7.7, 5.2, INT16)
    moved = with_factors(weight, x, out, 15)
    scales: Any = weight.scale, moved.scale
    for before, after in zip(*scales, strict=True):
        factor = np.frexp(x.scale * after / out.scale)[0] * 2**15
        assert abs(factor - round(factor)) < 2**-7
        assert before * (1 - 1e-6) <= after <= before * (1 + 2**-14)
    assert with_factors(moved, x, out, 15).scale == pytest.approx(moved.scale, rel=1e-7)


def test_factors_are_rounded_down_to_few_bits() -> None:
    assert [rounded_down(x, 3) for x in (0.9, 5 / 8, 5 / 8 - 1e-9, 3.2)] == [7 / 8, 5 / 8, 5 / 8, 3.0]


@pytest.mark.parametrize(("zero", "wanted", "found"), [(1, True, 0), (-1, True, 0), (2, True, 2), (0, False, -1), (3, False, 3)])  # fmt: skip
def test_a_zero_point_moves_by_one_step_and_the_range_stays(zero: int, wanted: bool, found: int) -> None:
    stored = QParams("int8", 0.5, zero, -128, 127)
    after = moved(stored, wanted)
    assert after.zero_point == found
    assert after.scale <= stored.scale * 128 / 127
    assert after.span[0] <= stored.span[0] + 1e-6
    assert after.span[1] >= stored.span[1] - 1e-6


def test_corners_are_told_from_bends() -> None:
    found = {op: corners(_function(op)).tolist() for op in ("hardswish", "silu", "exp", "relu")}
    assert found == {"hardswish": [-3, 3], "silu": [], "exp": [], "relu": [0]}


def _function(op: str) -> Any:
    graph = Graph()
    return function_of(graph.call_function(getattr(torch.ops.aten, op).default, (graph.placeholder("x"),)))
